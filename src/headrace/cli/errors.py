"""Errors of all commands, in one paragraph, and their exit codes."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from headrace import errors
from headrace.errors import BrokerError, Code, HeadraceError

EXIT_FAILED = 1
EXIT_INVALID_USAGE = 2
EXIT_NOT_RUNNING = EXIT_NOT_FOUND = 3
EXIT_INTERRUPTED = 130

_NOT_FOUND = {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.GROUP_ID_NOT_FOUND, Code.TRANSACTIONAL_ID_NOT_FOUND}

P = ParamSpec("P")
R = TypeVar("R")


class CommandError(click.ClickException):
    """An error for the user: fact, value and remedy, in one paragraph."""

    exit_code = EXIT_FAILED


class InvalidUsageError(CommandError):
    """An invalid argument, or an invalid option from the environment or a file."""

    exit_code = EXIT_INVALID_USAGE


class ResourceNotFoundError(CommandError):
    """A topic, group or transaction that does not exist."""

    exit_code = EXIT_NOT_FOUND


class BrokerNotRunningError(CommandError):
    """No broker at the address, or on the data folder."""

    exit_code = EXIT_NOT_RUNNING


def command_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: its errors become one paragraph, with a traceback only if --debug is given.

    Ctrl-C exits with 130. A closed pipe (`| head`) exits with 0.
    """

    @functools.wraps(command)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (KeyboardInterrupt, click.Abort):
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            _redirect_stdout_to_null()
            raise click.exceptions.Exit(0) from None
        except (HeadraceError, OSError, CommandError) as error:
            if kwargs.get("debug"):
                traceback.print_exc()
            raise _as_command_error(error) from error

    return checked


def _as_command_error(error: Exception) -> CommandError:
    if isinstance(error, CommandError):
        return error
    if isinstance(error, errors.NotFoundError) or (isinstance(error, BrokerError) and error.code in _NOT_FOUND):
        return ResourceNotFoundError(str(error))
    return CommandError(str(error))


def _redirect_stdout_to_null() -> None:
    """Prevent a second BrokenPipeError when the interpreter flushes stdout at exit."""
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, sys.stdout.fileno())
    os.close(null_fd)
