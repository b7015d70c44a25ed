"""Complete the SBOM of `make wheel`: the works that are inside the wheel, and what needs what.

    python -m scripts.sbom SBOM OPENSSL_VERSION

cyclonedx-py lists what pip installs beside the wheel. A scanner has to find a faulty OpenSSL inside
of it, too. `licenses/README.md` has the same works.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def works_inside(openssl: str) -> list[dict[str, Any]]:
    """The components that are compiled or copied into the wheel; `openssl` is its version.

    Raises SystemExit if it is no version.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", openssl):
        raise SystemExit(f"{openssl!r} is no version: are the headers older than OpenSSL 3?")
    nanobind = re.search(
        r"^nanobind==(\S+)", (ROOT / "docker/build.lock").read_text(), re.MULTILINE
    )
    assert nanobind is not None, "docker/build.lock pins nanobind"
    uplot = json.loads((ROOT / "elasticdl/page/npm/package.json").read_text())["dependencies"]
    inside = "compiled into elasticdl.native._native"
    return [
        _component("nanobind", "pypi/nanobind", nanobind[1], "BSD-3-Clause", inside),
        # nanobind has a copy of it, which does not say its version.
        _component("robin_map", "github/tessil/robin-map", "", "MIT", inside),
        _component("OpenSSL", "generic/openssl", openssl, "Apache-2.0", inside),
        _component("uPlot", "npm/uplot", uplot["uplot"], "MIT", "in elasticdl/page/vendor"),
    ]


def _component(name: str, kind: str, version: str, license_id: str, where: str) -> dict[str, Any]:
    purl = f"pkg:{kind}@{version}" if version else f"pkg:{kind}"
    return {
        "bom-ref": f"inside-{name}",
        "type": "library",
        "name": name,
        **({"version": version} if version else {}),
        "description": where,
        "licenses": [{"license": {"id": license_id}}],
        "purl": purl,
    }


def complete(bom: dict[str, Any], openssl: str) -> dict[str, Any]:
    """Return the SBOM with the works inside the wheel, and what the package itself needs."""
    inside = works_inside(openssl)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {_normal(re.split(r"[<>=!~\[; ]", one)[0]) for one in project["dependencies"]}
    installed = {_normal(one["name"]): one["bom-ref"] for one in bom["components"]}
    needs = [installed[name] for name in sorted(wanted)] + [one["bom-ref"] for one in inside]
    root = bom["metadata"]["component"]["bom-ref"]
    others = [one for one in bom["dependencies"] if one["ref"] != root]
    return {
        **bom,
        "components": [*bom["components"], *inside],
        "dependencies": [
            *others,
            *({"ref": one["bom-ref"]} for one in inside),
            {"ref": root, "dependsOn": needs},
        ],
    }


def _normal(name: str) -> str:
    """The name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Rewrite the file."""
    path, openssl = Path(sys.argv[1]), sys.argv[2]
    bom = complete(json.loads(path.read_text()), openssl)
    path.write_text(json.dumps(bom, indent=2) + "\n")


if __name__ == "__main__":
    main()
