"""`cluster setup`: prepare a cluster for jobs that share it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticdl.cli.job_argument import FORMAT_OPTION, SETTINGS, cluster_options
from elasticdl.cli.param_types import LocalPath
from elasticdl.cli.views.console import put, show, tell
from elasticdl.cli.views.documents import Format, render
from elasticdl.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.cluster.kubernetes.cluster_setup import SetUp


@click.group(context_settings=SETTINGS)
def cluster() -> None:
    """Prepare a cluster for jobs that share it."""


@cluster.command(context_settings=SETTINGS)
@cluster_options
@click.option(
    "--guaranteed-pods",
    type=click.IntRange(min=1),
    metavar="N",
    help="Quota of pods that other jobs never preempt: masters, servers, MIN workers.",
)
@click.option("--dry-run", is_flag=True, help="Print the objects as YAML, without a cluster.")
@click.option(
    "--kustomize",
    "folder",
    metavar="DIR",
    type=LocalPath(file_okay=False, path_type=Path),
    help="Write the objects into DIR as bases for kustomize, without a cluster.",
)
@FORMAT_OPTION
def setup(
    namespace: str,
    kube_context: str,
    guaranteed_pods: int | None,
    dry_run: bool,
    folder: Path | None,
    form: str,
) -> None:
    """Install the priority ladder, and the roles of users and of masters.

    Needs the rights to create PriorityClasses and ClusterRoles. The account of masters, and the
    quota, are those of one namespace. Repeat it with another --namespace, or after an update: it
    changes only what is missing or differs.
    """
    from elasticdl.cluster.kubernetes.setup_objects import cluster_objects, namespace_objects

    if folder is not None:
        if dry_run:
            raise SpecError("--dry-run prints and --kustomize writes", hint="give one of them")
        _write(folder, namespace, guaranteed_pods, Format(form))
        return
    if dry_run:
        put(_documents([*cluster_objects(), *namespace_objects(namespace, guaranteed_pods)], form))
        return
    from elasticdl.cli.jobs.cluster_client import ClusterClient
    from elasticdl.cluster.kubernetes.cluster_setup import set_up

    with ClusterClient(namespace, kube_context) as client:
        objects = [*cluster_objects(), *namespace_objects(client.namespace, guaranteed_pods)]
        done = client.run(set_up(client.api, objects, client.namespace))
        if form == Format.TABLE:
            _show(done)
        else:
            put(render([_as_row(entry) for entry in done], Format(form)))
        tell(
            "allow somebody to run jobs: kubectl -n"
            f" {client.namespace} create rolebinding elasticdl-users --clusterrole=elasticdl-user"
            " --user=NAME"
        )


def _documents(objects: Sequence[dict[str, Any]], form: str) -> str:
    if form == Format.JSON:
        return render({"apiVersion": "v1", "kind": "List", "items": objects}, Format.JSON)
    return "---\n".join(render(manifest, Format.YAML) for manifest in objects)


def _write(folder: Path, namespace: str, guaranteed_pods: int | None, form: Format) -> None:
    """Write the bases, and show the paths of their files. Raises SpecError."""
    from elasticdl.cluster.kubernetes.kustomize import FIRST_LINE, kustomize_files

    texts = kustomize_files(namespace, guaranteed_pods)
    files = {folder / name: text for name, text in texts.items()}
    try:
        for path in files:
            if path.exists() and not path.read_bytes().startswith(FIRST_LINE.encode()):
                raise SpecError(
                    f"{path} exists, and this command has not made it",
                    hint="name another folder, and use the bases from there",
                )
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"cannot write {error.filename or folder}: {error.strerror or error}",
            hint="name a writable folder",
        ) from error
    if form is Format.TABLE:
        for path in files:
            show(str(path))
    else:
        put(render([str(path) for path in files], form))


def _show(done: Sequence[SetUp]) -> None:
    names: dict[tuple[str, str], list[str]] = {}
    for entry in done:
        names.setdefault((str(entry.result), entry.kind), []).append(entry.name)
    for (result, kind), of_kind in names.items():
        more = f" to {of_kind[-1]} ({len(of_kind)})" if len(of_kind) > 1 else ""
        show(f"{result:<9} {kind} {of_kind[0]}{more}")


def _as_row(entry: SetUp) -> dict[str, str]:
    return {"kind": entry.kind, "name": entry.name, "result": str(entry.result)}
