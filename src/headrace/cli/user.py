"""headrace user: SCRAM users; list, add, alter, remove."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from headrace.cli import LazyModule
from headrace.cli.connection import ClusterConnection, cluster_command
from headrace.cli.errors import CommandError, InvalidUsageError, ResourceNotFoundError
from headrace.cli.output import emit, render_table
from headrace.cli.shared_options import confirm, yes_option
from headrace.wire.sasl import SCRAM_NUMBERS, SCRAM_SHA_512

if TYPE_CHECKING:
    from headrace.client.admin import AdminClient
    from headrace.client.admin import users as user_admin
else:
    user_admin = LazyModule("headrace.client.admin.users")

R = TypeVar("R")

_PASSWORD_BYTES_MAX = 4096
_ITERATIONS_MIN, _ITERATIONS_MAX = 4096, 16_384  # Kafka's bounds
_MECHANISM = click.Choice(list(SCRAM_NUMBERS), case_sensitive=False)


@click.group()
def user() -> None:
    """List, add, alter and remove users that authenticate with SASL SCRAM.

    Passwords are never arguments, which other users of this machine can see: they are typed at a prompt, or read from a
    file, an environment variable or stdin. Brokers get them salted and hashed.

    \b
    Exit codes of all subcommands: 0 success; 1 failure; 2 invalid usage; 3 no such user, or no broker; 130 interrupted.
    """


class _NewPassword(NamedTuple):
    """The options of a command that sets a password."""

    mechanisms: tuple[str, ...]
    iterations: int
    file: Path | None
    variable: str | None

    def read(self) -> str:
        if self.variable is not None:
            password, source = os.environ.get(self.variable, ""), f"environment variable {self.variable}"
        elif self.file is not None:
            password, source = _first_line(self.file), f"file {self.file}"
        elif sys.stdin.isatty():
            prompted: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
            password, source = prompted, "prompt"
        else:
            raise InvalidUsageError("no password: stdin is not a terminal; pass --password-file or --password-env")
        if not password:
            raise InvalidUsageError(f"no password: the {source} is empty")
        return password


def password_options(command: Callable[..., R]) -> Callable[..., R]:
    """Decorate a command with the options of a new password, passed to it as `password`."""

    @click.option(
        "--mechanism",
        "mechanisms",
        type=_MECHANISM,
        multiple=True,
        default=[SCRAM_SHA_512],
        show_default=True,
        help="Repeatable.",
    )
    @click.option(
        "--iterations",
        type=click.IntRange(_ITERATIONS_MIN, _ITERATIONS_MAX),
        default=_ITERATIONS_MIN,
        show_default=True,
        help="How often the password is hashed.",
    )
    @click.option(
        "--password-file",
        type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
        help="Read the password from the first line of a file; - for stdin.",
    )
    @click.option("--password-env", metavar="VARIABLE", help="Read the password from an environment variable.")
    @functools.wraps(command)
    def with_password(
        *,
        mechanisms: tuple[str, ...],
        iterations: int,
        password_file: Path | None,
        password_env: str | None,
        **kwargs: Any,
    ) -> R:
        if password_file is not None and password_env is not None:
            raise InvalidUsageError("pass either --password-file or --password-env")
        return command(password=_NewPassword(mechanisms, iterations, password_file, password_env), **kwargs)

    return with_password


def _first_line(file: Path) -> str:
    with click.open_file(str(file), "rb") as stream:
        line: bytes = stream.readline(_PASSWORD_BYTES_MAX + 1)
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(text) > _PASSWORD_BYTES_MAX:
        raise InvalidUsageError(f"invalid password: expected at most {_PASSWORD_BYTES_MAX} bytes in the first line")
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise InvalidUsageError("invalid password: expected UTF-8") from None


@user.command(name="list")
@cluster_command
def list_(connection: ClusterConnection, output_format: str) -> None:
    """List users and their SCRAM mechanisms. Passwords cannot be shown: brokers do not have them.

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no broker; 130 interrupted.
    """
    with connection.admin() as admin:
        users = admin.describe_user_scram_credentials()
    facts = [
        {"user": name, "mechanism": info.mechanism, "iterations": info.iterations}
        for name, infos in users.items()
        for info in infos
    ]
    table = render_table(("user", "mechanism", "iterations"), [tuple(fact.values()) for fact in facts])
    emit(output_format, {"users": facts}, table if facts else "no users")


@user.command()
@click.argument("name", metavar="USER")
@password_options
@cluster_command
def add(connection: ClusterConnection, name: str, password: _NewPassword, output_format: str) -> None:
    """Add a USER with a password.

    \b
    headrace user add ann
    headrace user add etl --mechanism SCRAM-SHA-256 --password-file /run/secrets/etl

    \b
    Exit codes: 0 success; 1 failure, for example because the user exists; 2 invalid usage; 3 no broker;
    130 interrupted.
    """
    with connection.admin() as admin:
        if existing := {*password.mechanisms} & _mechanisms_of(admin, name):
            raise CommandError(
                f"user {name!r} already exists with {', '.join(sorted(existing))}; `headrace user alter` sets a new "
                "password"
            )
        _set_password(admin, name, password)
    emit(output_format, {"user": name, "mechanisms": list(password.mechanisms)}, f"added {name}")


@user.command()
@click.argument("name", metavar="USER")
@password_options
@cluster_command
def alter(connection: ClusterConnection, name: str, password: _NewPassword, output_format: str) -> None:
    """Set a new password of a USER. Connections that are authenticated already stay open.

    A mechanism that the user does not have yet is added.

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no such user, or no broker; 130 interrupted.
    """
    with connection.admin() as admin:
        if not _mechanisms_of(admin, name):
            raise _unknown_user(name)
        _set_password(admin, name, password)
    emit(output_format, {"user": name, "mechanisms": list(password.mechanisms)}, f"altered {name}")


@user.command()
@click.argument("names", metavar="USER...", nargs=-1, required=True)
@click.option("--mechanism", "mechanisms", type=_MECHANISM, multiple=True, help="Only this one; repeatable.")
@yes_option
@cluster_command
def remove(
    *,
    connection: ClusterConnection,
    names: tuple[str, ...],
    mechanisms: tuple[str, ...],
    yes: bool,
    output_format: str,
) -> None:
    """Remove users: they cannot authenticate any more. Their ACLs and quotas are kept.

    Asks for confirmation at a terminal; elsewhere --yes is required.

    \b
    Exit codes: 0 removed; 1 failure, or not confirmed; 2 invalid usage; 3 no such user, or no broker; 130 interrupted.
    """
    with connection.admin() as admin:
        credentials: list[user_admin.DeleteScramCredential] = []
        for name in dict.fromkeys(names):
            existing = _mechanisms_of(admin, name)
            to_remove = existing & {*mechanisms} if mechanisms else existing
            if not to_remove:
                raise _unknown_user(name, mechanisms)
            credentials += [user_admin.DeleteScramCredential(name, mechanism) for mechanism in sorted(to_remove)]
        if not confirm(f"Remove {', '.join(f'{c.user} ({c.mechanism})' for c in credentials)}?", yes):
            raise CommandError("nothing was removed")
        admin.alter_user_scram_credentials(credentials)
    removed = [{"user": credential.user, "mechanism": credential.mechanism} for credential in credentials]
    emit(output_format, {"removed": removed}, "\n".join(f"removed {c.user} ({c.mechanism})" for c in credentials))


def _set_password(admin: AdminClient, name: str, new: _NewPassword) -> None:
    password = new.read()
    admin.alter_user_scram_credentials(
        user_admin.SetScramPassword(name, mechanism, password, new.iterations)
        for mechanism in dict.fromkeys(new.mechanisms)
    )


def _mechanisms_of(admin: AdminClient, name: str) -> set[str]:
    return {info.mechanism for info in admin.describe_user_scram_credentials().get(name, ())}


def _unknown_user(name: str, mechanisms: Sequence[str] = ()) -> ResourceNotFoundError:
    which = f" with {', '.join(mechanisms)}" if mechanisms else ""
    return ResourceNotFoundError(f"user {name!r}{which} does not exist; `headrace user list` shows the existing ones")
