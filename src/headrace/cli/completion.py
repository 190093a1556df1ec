"""headrace completion: what a shell needs to complete commands, options and choices."""

from __future__ import annotations

import click

from headrace.cli.output import command_errors

PROGRAM = "headrace"
VARIABLE = "_HEADRACE_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@command_errors
def completion(shell: str) -> None:
    """Print what lets a SHELL complete the commands of headrace.

    \b
    bash   headrace completion bash > ~/.local/share/bash-completion/completions/headrace
    zsh    headrace completion zsh > ~/.zfunc/_headrace       (with fpath+=~/.zfunc before compinit in ~/.zshrc)
    fish   headrace completion fish > ~/.config/fish/completions/headrace.fish
    now    eval "$(headrace completion bash)"

    \b
    Exit codes: 0 done; 2 wrong usage.
    """
    from click.shell_completion import get_completion_class

    from headrace.cli.commands import headrace

    cls = get_completion_class(shell)
    assert cls is not None
    click.echo(cls(headrace, {}, PROGRAM, VARIABLE).source())
