"""`zoo init`, `zoo build` and `zoo push`: package model modules as an image for a cluster."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from elasticdl.cli import image_builders, zoo_template
from elasticdl.cli.param_types import LocalPath, Seconds
from elasticdl.cli.views.console import show, tell
from elasticdl.errors import SpecError

FOLDER = "/model_zoo"
"""The folder of the modules in the image."""
BASE_IMAGE = "elasticdl:latest"
BUILD_LIMIT_S = 3600.0
_SETTINGS: dict[str, Any] = {"token_normalize_func": lambda token: token.replace("_", "-")}
_BUILDER = click.option(
    "--builder",
    type=click.Choice([str(builder) for builder in image_builders.Builder]),
    help="Program that builds and pushes; default: the first that works.",
)
_LIMIT = click.option(
    "--timeout",
    "limit_s",
    type=Seconds(at_least=1),
    default=BUILD_LIMIT_S,
    metavar="SECONDS",
    help=f"Give up after this long. [{BUILD_LIMIT_S:g}]",
)


@click.group(context_settings=_SETTINGS)
def zoo() -> None:
    """Build and push the image of a model zoo, for `elasticdl train --image-name`.

    The modules are in /model_zoo of the image: `--model-zoo /model_zoo`.
    """


@zoo.command()
@click.argument("folder", metavar="DIR", type=LocalPath(path_type=Path))
@click.option(
    "--base-image",
    default=BASE_IMAGE,
    show_default=True,
    help="ElasticDL's image to build on.",
)
def init(folder: Path, base_image: str) -> None:
    """Write a Dockerfile and requirements.txt into DIR, and an example module if it has none."""
    texts = {
        "Dockerfile": zoo_template.DOCKERFILE.replace(
            "@BASE_IMAGE@", image_builders.usable_name(base_image)
        ).replace("@FOLDER@", FOLDER),
        "requirements.txt": zoo_template.REQUIREMENTS,
        ".dockerignore": zoo_template.IGNORED,
    }
    if (folder / "Dockerfile").exists():
        raise SpecError(
            f"{folder / 'Dockerfile'} exists already",
            hint=f"elasticdl zoo build {folder} --image NAME",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        modules = sorted(path.name for path in folder.glob("*.py"))
        if modules:
            tell(f"no example: {folder} has {modules[0]} already")
        else:
            texts |= {"example.py": zoo_template.MODULE, "example.csv": zoo_template.example_data()}
        for name, text in texts.items():
            if not (folder / name).exists():
                (folder / name).write_text(text, encoding="utf-8")
                show(str(folder / name))
    except OSError as error:
        raise SpecError(
            f"cannot write {error.filename or folder}: {error.strerror}",
            hint="name a writable folder",
        ) from error
    place = shlex.quote(str(folder))
    example = (
        f"example --training-data {shlex.quote(str(folder / 'example.csv'))} --num-epochs 40"
        if "example.py" in texts
        else "MODULE --training-data DATA"
    )
    tell(f"next, on this machine: elasticdl train --model-zoo {place} --model-def {example}")
    tell(f"or, for a cluster: elasticdl zoo build {place} --image REGISTRY/NAME:TAG")


@zoo.command()
@click.argument("folder", metavar="DIR", type=LocalPath(path_type=Path))
@click.option(
    "--image",
    required=True,
    metavar="NAME",
    help="Name of the new image, such as registry.example.com/team/zoo:1.",
)
@click.option(
    "--base-image",
    default="",
    metavar="NAME",
    help="Base image instead of the Dockerfile's.",
)
@_BUILDER
@_LIMIT
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- FLAGS OF THE BUILDER]")
def build(
    folder: Path,
    image: str,
    base_image: str,
    builder: str | None,
    limit_s: float,
    extra: tuple[str, ...],
) -> None:
    """Build an image of the model zoo in DIR and print its name."""
    if not (folder / "Dockerfile").is_file():
        raise SpecError(f"there is no Dockerfile in {folder}", hint=f"elasticdl zoo init {folder}")
    image_builders.usable_name(image)
    if base_image:
        image_builders.usable_name(base_image)
    wanted = image_builders.Build(str(folder.resolve()), image, base_image, extra)
    image_builders.carry_out(
        wanted.command(image_builders.chosen(builder)), f"building {image}", limit_s
    )
    show(image)
    tell(f"next: elasticdl zoo push {image}")


@zoo.command()
@click.argument("image", metavar="IMAGE")
@_BUILDER
@_LIMIT
def push(image: str, builder: str | None, limit_s: float) -> None:
    """Push IMAGE to the registry in its name. Log in there first, with `docker login` or alike."""
    image_builders.usable_name(image)
    program = image_builders.owner_of(image, builder)
    image_builders.carry_out([program, "push", image], f"pushing {image}", limit_s)
    show(image)
    tell(f"next: elasticdl train --image-name {image} --model-zoo {FOLDER} …")
