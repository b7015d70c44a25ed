"""What shells are told to offer. In these, `--flag=value` works as `--flag value` does."""

from __future__ import annotations

from typing import Any, final

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)


@final
class Bash(BashComplete):
    """Bash takes words apart at `=`."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        kept = [
            word
            for before, word in zip(["", *args], args, strict=False)
            if word != "=" or not before.startswith("--")
        ]
        return kept, "" if incomplete == "=" else incomplete


class _Whole(ShellComplete):
    """Other shells replace the whole word, the flag with it."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        found = super().get_completions(args, incomplete)
        flag, sign, _ = incomplete.partition("=")
        if sign and flag.startswith("--"):
            for item in found:
                item.value = f"{flag}={item.value}"
        return found


@final
class Zsh(_Whole, ZshComplete):
    """See _Whole."""


@final
class Fish(_Whole, FishComplete):
    """See _Whole. Its script takes lines apart at commas."""

    def format_completion(self, item: CompletionItem[str]) -> str:
        item.help = (item.help or "").replace(",", ";")
        return super().format_completion(item)


def use_ours() -> None:
    """In the place of click's own."""
    for one in (Bash, Zsh, Fish):
        kind: Any = one
        add_completion_class(kind)
