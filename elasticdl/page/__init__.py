"""The status page and the report as HTML documents around one snapshot. Pure.

The scripts in `static/` render the snapshot in the browser. The package build adds `vendor/`, which
is not in the tree.
"""

from elasticdl.page.assets import NoSuchFile, static
from elasticdl.page.document import render_page, render_report, render_sign_in

__all__ = ["NoSuchFile", "render_page", "render_report", "render_sign_in", "static"]
