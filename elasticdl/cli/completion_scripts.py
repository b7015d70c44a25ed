"""Shell completion in which `--flag=value` works like `--flag value`."""

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
    """Joins words that bash splits at `=`."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        kept = [
            word
            for before, word in zip(["", *args], args, strict=False)
            if word != "=" or not before.startswith("--")
        ]
        return kept, "" if incomplete == "=" else incomplete


class _WholeWord(ShellComplete):
    """For shells that replace the whole word, including the flag."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        items = super().get_completions(args, incomplete)
        flag, sign, _ = incomplete.partition("=")
        if sign and flag.startswith("--"):
            for item in items:
                item.value = f"{flag}={item.value}"
        return items


@final
class Zsh(_WholeWord, ZshComplete):
    """Zsh replaces whole words."""


@final
class Fish(_WholeWord, FishComplete):
    """Fish replaces whole words, and its script splits lines at commas."""

    def format_completion(self, item: CompletionItem[str]) -> str:
        item.help = (item.help or "").replace(",", ";")
        return super().format_completion(item)


def use_ours() -> None:
    """Register these classes instead of click's."""
    shells: tuple[Any, ...] = (Bash, Zsh, Fish)
    for shell in shells:
        add_completion_class(shell)
