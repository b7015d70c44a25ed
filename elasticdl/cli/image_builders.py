"""Programs that build and push images: docker, podman or buildah, whichever is there.

The last two need no daemon.
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
    """In the order in which they are tried."""

    DOCKER = "docker"
    PODMAN = "podman"
    BUILDAH = "buildah"


_BUILD = {
    Builder.DOCKER: ("build",),
    Builder.PODMAN: ("build",),
    # Without it, buildah builds everything anew each time.
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
    """An image to be built of a folder with a Dockerfile.

    `base_image` may be '': the Dockerfile's own; `extra` goes to the builder.
    """

    folder: str
    image: str
    base_image: str = ""
    extra: tuple[str, ...] = ()

    def command(self, builder: Builder) -> list[str]:
        """The builder's argument vector."""
        base = [f"--build-arg=BASE_IMAGE={self.base_image}"] if self.base_image else []
        return [builder, *_BUILD[builder], f"--tag={self.image}", *base, *self.extra, self.folder]


def usable_name(image: str) -> str:
    """The name of an image, as it was given. Raises SpecError for what can be none."""
    if not IMAGE_NAME.fullmatch(image):
        raise SpecError(
            f"{image!r} is no name of an image",
            hint="expected for example registry.example.com/team/zoo:1",
        )
    return image


def chosen(wanted: str | None) -> Builder:
    """The builder that was asked for, or the first that works.

    Raises PermanentError that says what is wrong with each.
    """
    if wanted:
        if reason := why_not(Builder(wanted)):
            raise PermanentError(reason, hint="leave --builder out to take what is there")
        return Builder(wanted)
    reasons = []
    for builder in Builder:
        if not (reason := why_not(builder)):
            return builder
        reasons.append(reason)
    raise _no_builder(reasons)


def owner_of(image: str, wanted: str | None) -> Builder:
    """The builder that has an image here. Raises PermanentError if none has."""
    reasons = []
    for builder in [Builder(wanted)] if wanted else Builder:
        reason = why_not(builder)
        if not reason and _ask([builder, *_HAS[builder], image]) == "":
            return builder
        reasons.append(reason or f"{builder} does not have it")
    raise PermanentError(
        f"there is no image {image} here: {'; '.join(reasons)}",
        hint=f"elasticdl zoo build DIR --image {image}",
    )


def why_not(builder: Builder) -> str:
    """Why a builder cannot be used, in words; '' if it can."""
    if shutil.which(builder) is None:
        return f"{builder} is not installed"
    if builder is Builder.DOCKER and (
        said := _ask(["docker", "version", "--format", "{{.Server.Version}}"])
    ):
        return f"docker's daemon does not answer ({said})"
    return ""


def carry_out(command: Sequence[str], what: str, limit_s: float) -> None:
    """Run a builder, passing on what it says.

    Raises PermanentError with its last lines if it fails or takes longer than `limit_s`.
    """
    last: deque[str] = deque(maxlen=LAST_LINES)
    # A session of its own: what the builder has started ends with it.
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
        said = "\n".join(f"  {line}" for line in last)
        raise PermanentError(
            f"{what} failed: `{command[0]} {command[1]}` {how}; it said last:\n{said}"
        )


def _end(process: subprocess.Popen[str]) -> None:
    """SIGTERM, so that containers of a build are removed, and SIGKILL for whatever of the session
    is left.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _ask(command: Sequence[str]) -> str:
    """'' if it succeeds, else the last line that it said."""
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
        f"nothing here can build an image: {'; '.join(reasons)}",
        hint=(
            "install buildah or podman, which need no daemon, for example: sudo apt-get install"
            " buildah"
        ),
    )
