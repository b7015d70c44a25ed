"""`completion`: print a shell completion script."""

from __future__ import annotations

import click

from elasticdl.cli.views.console import put

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  echo 'eval "$(elasticdl completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(elasticdl completion zsh)"' >> ~/.zshrc
    fish:  elasticdl completion fish > ~/.config/fish/completions/elasticdl.fish

    ELASTICDL_COMPLETION_SECONDS limits the wait for names from the cluster: 1.5 by default, 0
    disables it.
    """  # noqa: D301 - click's mark for a paragraph that stays as it is
    from click.shell_completion import get_completion_class

    from elasticdl.cli.completion_scripts import use_ours
    from elasticdl.cli.main import COMPLETING, elasticdl

    use_ours()
    kind = get_completion_class(shell)
    assert kind is not None
    put(kind(elasticdl, {}, "elasticdl", COMPLETING).source() + "\n")
