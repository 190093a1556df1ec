"""What all commands share: two formats, errors in one paragraph, exit codes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import click

from headrace.errors import HeadraceError

EXIT_FAILED = 1
EXIT_NOT_RUNNING = 3

P = ParamSpec("P")
R = TypeVar("R")

format_option = click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, or one JSON object on a line.",
)
debug_option = click.option("--debug", is_flag=True, help="Show where an error comes from, and more of the log.")


def emit(output_format: str, value: Any, text: str) -> None:
    """Print a result in the format that was asked for."""
    click.echo(json.dumps(value) if output_format == "json" else text)


class CommandError(click.ClickException):
    """What went wrong, where, and what to do, in one paragraph."""

    exit_code = EXIT_FAILED


class NotRunningError(CommandError):
    """No broker where one was expected."""

    exit_code = EXIT_NOT_RUNNING


def command_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Let a command end with a paragraph instead of a traceback; with --debug, with both."""

    @functools.wraps(command)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (HeadraceError, OSError) as error:
            if kwargs.get("debug"):
                raise
            raise CommandError(str(error)) from error

    return checked
