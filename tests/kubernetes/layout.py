"""An image as files: an OCI layout that keeps its large layers as they are, so that they are
written and read once, not at each build.

A builder packs all layers anew whenever it exports an image: half a minute of work for a change of
a few files. What a layout has
already it does not write again; so large layers are put there unpacked, under the name that it
looks for.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

LARGE_BYTES = 128 << 20
"""Not the layer of the project's own code, which is new in each image."""
Buildah = Callable[..., str]
"""Runs `buildah` with some arguments; what it printed."""


@dataclass(frozen=True)
class Built:
    """An image in a layout. `identity` tells it from all others that had its name."""

    folder: Path
    name: str
    identity: str

    def blobs(self) -> Iterator[tuple[str, Path]]:
        """Every file that the image is made of, by its digest: the manifest, the settings, the
        layers.
        """
        for found in self._index()["manifests"]:
            manifest = json.loads(self._path(found["digest"]).read_text())
            for one in (found, manifest["config"], *manifest["layers"]):
                yield _hex(one["digest"]), self._path(one["digest"])

    def write(self, archive: IO[bytes], without: Container[str] = ()) -> None:
        """As an OCI archive; `without` some blobs that the reader has already."""
        with tarfile.open(fileobj=archive, mode="w|") as tar:
            for name in ("oci-layout", "index.json"):
                tar.add(self.folder / name, name)
            for digest, path in self.blobs():
                if digest not in without:
                    tar.add(path, f"blobs/sha256/{digest}")

    def share(self, content: Path) -> None:
        """Take the files of a store that has the same blobs in place of our own: once on the disk,
        not twice.
        """
        for digest, path in self.blobs():
            theirs = content / digest
            if theirs.exists() and not theirs.samefile(path):
                part = path.with_suffix(".part")
                part.unlink(missing_ok=True)
                os.link(theirs, part)
                part.rename(path)

    def _index(self) -> Any:
        return json.loads((self.folder / "index.json").read_text())

    def _path(self, digest: str) -> Path:
        return self.folder / "blobs/sha256" / _hex(digest)


def export(buildah: Buildah, name: str, storage: Path, folder: Path) -> Built:
    """Make `folder` the layout of an image that the builder has in `storage`; what it has of it
    already stays. One at a time exports to a folder.
    """
    said = json.loads(buildah("inspect", "--type", "image", name))
    built = Built(folder, name, said["FromImageID"])
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    sizes = {
        layer.get("diff-digest", ""): layer.get("diff-size", 0)
        for layer in json.loads((storage / "overlay-layers/layers.json").read_text())
    }
    large = {
        _hex(digest)
        for digest in said["OCIv1"]["rootfs"]["diff_ids"]
        if sizes.get(digest, 0) >= LARGE_BYTES
    }
    for left in folder.glob("tmp*"):  # of an export that was killed
        shutil.rmtree(left)
    if any(not (blobs / digest).exists() for digest in large):
        with tempfile.TemporaryDirectory(dir=folder) as part:
            # Of all transports only this one leaves layers as they are.
            buildah("push", "--disable-compression", name, f"dir:{part}")
            for digest in large:
                Path(part, digest).rename(blobs / digest)
    (folder / "index.json").unlink(missing_ok=True)
    buildah("push", name, f"oci:{folder}:{name}")
    needed = {digest for digest, _ in built.blobs()}
    for path in blobs.iterdir():
        if path.name not in needed:
            path.unlink()
    return built


def _hex(digest: str) -> str:
    return digest.rpartition(":")[2]
