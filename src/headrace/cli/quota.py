"""headrace quota: list, set, remove."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli import LazyModule
from headrace.cli.connection import ClusterConnection, cluster_command
from headrace.cli.errors import CommandError, InvalidUsageError, ResourceNotFoundError
from headrace.cli.output import emit, render_table
from headrace.cli.shared_options import confirm, parse_key_value, yes_option

if TYPE_CHECKING:
    from headrace.client.admin import quotas as quota_admin
else:
    quota_admin = LazyModule("headrace.client.admin.quotas")

R = TypeVar("R")

_DEFAULT_TEXT = "(default)"
_KINDS = {"user": "user", "client_id": "client-id", "ip": "ip"}
"""Kafka's entity types by the names in JSON."""


@click.group()
def quota() -> None:
    """List, set and remove client quotas.

    \b
    A quota applies to a user, a client id, both, or an IP address:
      producer_byte_rate, consumer_byte_rate    bytes per second       user, client id
      request_percentage                        of a request thread    user, client id
      controller_mutation_rate                  changes per second     user, client id
      connection_creation_rate                  connections per second IP address
    The most specific one counts. Defaults apply to all that have no quota of their own.

    \b
    Exit codes of all subcommands: 0 success; 1 failure; 2 invalid usage; 3 no such quota, or no broker;
    130 interrupted.
    """


def entity_options(command: Callable[..., R]) -> Callable[..., R]:
    """Decorate a command with --user, --client-id, --ip and their defaults, passed to it as `entity`."""

    @click.option("--user", metavar="NAME", help="The quotas of a user.")
    @click.option("--user-defaults", is_flag=True, help="The defaults of users.")
    @click.option("--client-id", metavar="ID", help="The quotas of a client id.")
    @click.option("--client-defaults", is_flag=True, help="The defaults of client ids.")
    @click.option("--ip", metavar="ADDRESS", help="The quotas of an IP address.")
    @click.option("--ip-defaults", is_flag=True, help="The defaults of IP addresses.")
    @functools.wraps(command)
    def with_entity(
        *,
        user: str | None,
        user_defaults: bool,
        client_id: str | None,
        client_defaults: bool,
        ip: str | None,
        ip_defaults: bool,
        **kwargs: Any,
    ) -> R:
        entity = quota_admin.QuotaEntity(
            _entity_name("user", user, user_defaults),
            _entity_name("client", client_id, client_defaults),
            _entity_name("ip", ip, ip_defaults),
        )
        if entity.ip is not None and (entity.user is not None or entity.client_id is not None):
            raise InvalidUsageError("--ip cannot be combined with --user or --client-id")
        return command(entity=entity, **kwargs)

    return with_entity


def _entity_name(noun: str, name: str | None, is_default: bool) -> quota_admin.Name | None:
    if name is not None and is_default:
        raise InvalidUsageError(f"pass either the name or --{noun}-defaults, got both")
    if name == "":
        raise InvalidUsageError(f"invalid name: it is empty; --{noun}-defaults selects the defaults")
    return quota_admin.DEFAULT if is_default else name


@quota.command(name="list")
@entity_options
@cluster_command
def list_(connection: ClusterConnection, entity: quota_admin.QuotaEntity, output_format: str) -> None:
    """List quotas: all, or those of a user, a client id or an IP address.

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no broker; 130 interrupted.
    """
    with connection.admin() as admin:
        quotas = admin.describe_client_quotas(entity)
    facts = [
        {**_entity_facts(entity), "quota": key, "value": value}
        for entity, values in quotas.items()
        for key, value in sorted(values.items())
    ]
    rows = [(*(_name_text(fact[kind]) for kind in _KINDS), fact["quota"], f"{fact['value']:,g}") for fact in facts]
    headings = ("user", "client id", "ip", "quota", "value")
    emit(output_format, {"quotas": facts}, render_table(headings, rows) if rows else "no quotas")


@quota.command(name="set")
@click.argument("values", metavar="KEY=VALUE...", nargs=-1, required=True)
@entity_options
@cluster_command
def set_(
    *,
    connection: ClusterConnection,
    entity: quota_admin.QuotaEntity,
    values: tuple[str, ...],
    output_format: str,
) -> None:
    """Set quotas of a user, a client id, both, or an IP address.

    \b
    headrace quota set --user ann producer_byte_rate=1048576 request_percentage=50
    headrace quota set --user-defaults --client-id etl consumer_byte_rate=2097152

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no broker; 130 interrupted.
    """
    _require_entity(entity)
    changes = dict(_parse_quota(text) for text in values)
    with connection.admin() as admin:
        admin.alter_client_quotas({entity: changes})
    text = "\n".join(f"{key} of {entity} is {value:,g}" for key, value in changes.items())
    emit(output_format, {**_entity_facts(entity), "set": changes}, text)


@quota.command()
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@entity_options
@yes_option
@cluster_command
def remove(
    *,
    connection: ClusterConnection,
    entity: quota_admin.QuotaEntity,
    keys: tuple[str, ...],
    yes: bool,
    output_format: str,
) -> None:
    """Remove quotas of a user, a client id, both, or an IP address; all of them without a KEY.

    Asks for confirmation at a terminal; elsewhere --yes is required.

    \b
    Exit codes: 0 removed; 1 failure, or not confirmed; 2 invalid usage; 3 no such quota, or no broker;
    130 interrupted.
    """
    _require_entity(entity)
    with connection.admin() as admin:
        existing = admin.describe_client_quotas(entity, strict=True).get(entity, {})
        missing = [key for key in keys if key not in existing]
        if missing or not existing:
            which = missing[0] if missing else "quota"
            raise ResourceNotFoundError(f"{entity} has no {which}; `headrace quota list` shows the existing ones")
        to_remove = list(dict.fromkeys(keys)) or sorted(existing)
        if not confirm(f"Remove {', '.join(to_remove)} of {entity}?", yes):
            raise CommandError("nothing was removed")
        admin.alter_client_quotas({entity: dict.fromkeys(to_remove)})
    text = "\n".join(f"removed {key} of {entity}" for key in to_remove)
    emit(output_format, {**_entity_facts(entity), "removed": to_remove}, text)


def _require_entity(entity: quota_admin.QuotaEntity) -> None:
    if not entity.parts():
        raise InvalidUsageError("pass --user, --client-id, both, or --ip; or --user-defaults, --client-defaults, …")


def _parse_quota(text: str) -> tuple[str, float]:
    key, value = parse_key_value(text, "quota")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number <= 0:
        raise InvalidUsageError(f"invalid {key}: expected a number above 0, got {value!r}")
    return key, number


def _entity_facts(entity: quota_admin.QuotaEntity) -> dict[str, Any]:
    """Return the parts as JSON: a name, "" for the default, null if the entity has no such part."""
    parts = entity.parts()
    return {name: (parts[kind] or "") if kind in parts else None for name, kind in _KINDS.items()}


def _name_text(name: str | None) -> str | None:
    return _DEFAULT_TEXT if name == "" else name
