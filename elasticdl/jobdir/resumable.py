"""Whether `--resume` can continue the job in a directory, or begin it."""

from __future__ import annotations

from elasticdl.checkpoint.layout import has_checkpoint, incomplete_checkpoint
from elasticdl.errors import ExitCode, SpecError
from elasticdl.jobdir.layout import JobDirectory, read_json

WHICH_JOB = (
    "give the --job-dir or --job-name of the job to resume; `elasticdl status JOB` prints the"
    " whole command"
)
_ANOTHER = "train with another --job-dir"


def refuse_resume(directory: JobDirectory) -> None:
    """Raise SpecError if the directory holds no checkpoint, and no training job to begin again."""
    if has_checkpoint(directory.checkpoints):
        return
    if not directory.spec.exists():
        raise SpecError(f"--resume, but {directory.path} holds no job", hint=WHICH_JOB)
    if damaged := incomplete_checkpoint(directory.checkpoints):
        raise SpecError(
            f"--resume, but {damaged} has no manifest and there is no other checkpoint",
            hint=(
                "restore the file from a copy; to start from the first record, remove"
                f" {directory.checkpoints}"
            ),
        )
    action = str(read_json(directory.spec).get("action") or "train")
    if action != "train":
        raise SpecError(f"--resume, but the job in {directory.path} is to {action}", hint=_ANOTHER)
    if read_json(directory.status).get("exit_code") == ExitCode.DONE:
        # To begin it again would replace its results, and the user wants to train further.
        raise SpecError(
            f"--resume, but the job in {directory.path} is done and kept no checkpoint",
            hint=_ANOTHER,
        )
