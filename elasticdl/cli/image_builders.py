"""Programs that build and push images: docker, podman or buildah.

Podman and buildah need no daemon.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import final

from elasticdl.cli.views.console import tell
from elasticdl.errors import PermanentError, SpecError

ASK_LIMIT_S, END_GRACE_S = 15.0, 10.0
LAST_LINES = 15
IMAGE_NAME = re.compile(r"[A-Za-z0-9][\w.:/@-]*")


class Builder(StrEnum):
    """Programs in the order of preference."""

    DOCKER = "docker"
    PODMAN = "podman"
    BUILDAH = "buildah"


_BUILD = {
    Builder.DOCKER: ("build",),
    Builder.PODMAN: ("build",),
    # Without --layers, buildah rebuilds every layer each time.
    Builder.BUILDAH: ("build", "--layers"),
}
_HAS = {
    Builder.DOCKER: ("image", "inspect", "--format", "{{.Id}}"),
    Builder.PODMAN: ("image", "inspect", "--format", "{{.Id}}"),
    Builder.BUILDAH: ("inspect", "--type", "image", "--format", "{{.FromImageID}}"),
}


@final
@dataclass(frozen=True, slots=True)
class Build:
    """A build of the Dockerfile in `folder`.

    An empty `base_image` selects the Dockerfile's own. `extra` are arguments for the builder.
    """

    folder: str
    image: str
    base_image: str = ""
    extra: tuple[str, ...] = ()

    def command(self, builder: Builder) -> list[str]:
        """Return the builder's argument vector."""
        base = [f"--build-arg=BASE_IMAGE={self.base_image}"] if self.base_image else []
        return [builder, *_BUILD[builder], f"--tag={self.image}", *base, *self.extra, self.folder]


def usable_name(image: str) -> str:
    """Return `image` if it is a valid image name. Raises SpecError."""
    if not IMAGE_NAME.fullmatch(image):
        raise SpecError(
            f"invalid image name {image!r}",
            hint="use a name such as registry.example.com/team/zoo:1",
        )
    return image


def chosen(wanted: str | None) -> Builder:
    """Return the wanted builder, or the first that works.

    Raises PermanentError that says why each one does not work.
    """
    if wanted:
        if reason := why_not(Builder(wanted)):
            raise PermanentError(reason, hint="omit --builder to use any that works")
        return Builder(wanted)
    reasons = []
    for builder in Builder:
        if not (reason := why_not(builder)):
            return builder
        reasons.append(reason)
    raise _no_builder(reasons)


def owner_of(image: str, wanted: str | None) -> Builder:
    """Return the builder that stores the image locally. Raises PermanentError if none does."""
    reasons = []
    for builder in [Builder(wanted)] if wanted else Builder:
        reason = why_not(builder)
        if not reason and _ask([builder, *_HAS[builder], image]) == "":
            return builder
        reasons.append(reason or f"{builder} does not have it")
    raise PermanentError(
        f"no local image {image}: {'; '.join(reasons)}",
        hint=f"elasticdl zoo build DIR --image {image}",
    )


def why_not(builder: Builder) -> str | None:
    """Return why a builder cannot be used; None if it can."""
    if shutil.which(builder) is None:
        return f"{builder} is not installed"
    if builder is Builder.DOCKER and (
        answer := _ask(["docker", "version", "--format", "{{.Server.Version}}"])
    ):
        return f"the docker daemon does not answer ({answer})"
    return None


def carry_out(command: Sequence[str], what: str, limit_s: float) -> None:
    """Run a builder and print its output.

    Raises PermanentError with its last lines if it fails or takes longer than `limit_s`.
    """
    last: deque[str] = deque(maxlen=LAST_LINES)
    # Its own session, so that its child processes can be killed with it.
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        late = threading.Event()

        def give_up() -> None:
            late.set()
            _end(process)

        timer = threading.Timer(limit_s, give_up)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                tell(line.rstrip())
                last.append(line.rstrip())
        except KeyboardInterrupt:
            _end(process)
            raise
        finally:
            timer.cancel()
            timer.join()
    if process.returncode != 0:
        how = (
            f"took longer than {limit_s:g} s"
            if late.is_set()
            else f"ended with exit code {process.returncode}"
        )
        output = "\n".join(f"  {line}" for line in last)
        raise PermanentError(
            f"{what} failed: `{command[0]} {command[1]}` {how}; last output:\n{output}"
        )


def _end(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM, so the builder can remove its containers, then SIGKILL after a grace period."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _ask(command: Sequence[str]) -> str:
    """Return '' if the command succeeds, else the last line of its output."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {ASK_LIMIT_S:g} s"
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"


def _no_builder(reasons: Sequence[str]) -> PermanentError:
    return PermanentError(
        f"no program can build an image here: {'; '.join(reasons)}",
        hint=("install buildah or podman, for example: sudo apt-get install buildah"),
    )
