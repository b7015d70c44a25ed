"""The status page and the report, made from one snapshot: plain values in, HTML out.

Nothing here asks anybody for anything.

`static/` has what browsers load; `vendor/` is put there when the package is built and is not in the
tree.
"""

from elasticdl.page.assets import NoSuchFile, static
from elasticdl.page.document import render_page, render_report, render_sign_in

__all__ = ["NoSuchFile", "render_page", "render_report", "render_sign_in", "static"]
