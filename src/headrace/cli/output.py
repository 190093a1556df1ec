"""What all commands share: two formats, errors in one paragraph, exit codes."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import click

from headrace import errors
from headrace.errors import BrokerError, Code, HeadraceError

EXIT_FAILED = 1
EXIT_WRONG_USAGE = 2
EXIT_NOT_RUNNING = EXIT_NOT_FOUND = 3
EXIT_INTERRUPTED = 130
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"

_NOT_FOUND = {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.GROUP_ID_NOT_FOUND, Code.TRANSACTIONAL_ID_NOT_FOUND}

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


class WrongUsageError(CommandError):
    """The command line, or an option from elsewhere, makes no sense."""

    exit_code = EXIT_WRONG_USAGE


class NotFoundError(CommandError):
    """What was asked for is not there: a topic, a group, a transaction."""

    exit_code = EXIT_NOT_FOUND


class NotRunningError(CommandError):
    """No broker where one was expected."""

    exit_code = EXIT_NOT_RUNNING


def command_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Let a command end with a paragraph instead of a traceback; with --debug, with both.

    Ctrl-C ends it with 130. A reader that has gone (`| head`) ends it quietly: it has what it wanted.
    """

    @functools.wraps(command)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (KeyboardInterrupt, click.Abort):
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            leave_stdout()
            raise click.exceptions.Exit(0) from None
        except (HeadraceError, OSError, CommandError) as error:
            if kwargs.get("debug"):
                traceback.print_exc()
            raise as_command_error(error) from error

    return checked


class _Warnings(logging.Handler):
    """What the clients log, for people: a line each, and each line once."""

    LINES_MAX = 100

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._said and len(self._said) < self.LINES_MAX:
            self._said.add(text)
            click.echo(f"warning: {text}", err=True)


def log_to_stderr(debug: bool) -> None:
    """Show warnings of the clients; with --debug, the whole log."""
    if debug:
        logging.basicConfig(level=logging.DEBUG, format=LOG_FORMAT)
    elif not any(isinstance(handler, _Warnings) for handler in logging.getLogger("headrace").handlers):
        logging.getLogger("headrace").addHandler(_Warnings())


@contextmanager
def quiet_log() -> Iterator[None]:
    """While what goes wrong will be raised anyway, the log need not tell it too."""
    log = logging.getLogger("headrace")
    if log.isEnabledFor(logging.DEBUG):
        yield
        return
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(logging.NOTSET)


def as_command_error(error: Exception) -> CommandError:
    """An error as a user gets to see it."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, errors.NotFoundError) or (isinstance(error, BrokerError) and error.code in _NOT_FOUND):
        return NotFoundError(str(error))
    return CommandError(str(error))


def leave_stdout() -> None:
    """Write no more to a pipe that nobody reads, not even at the end of the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
