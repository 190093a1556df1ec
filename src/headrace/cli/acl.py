"""headrace acl: list, add, remove."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from headrace.cli import LazyModule
from headrace.cli.connection import ClusterConnection, cluster_command
from headrace.cli.errors import CommandError, InvalidUsageError, ResourceNotFoundError
from headrace.cli.output import count_text, emit, render_table
from headrace.cli.shared_options import confirm, yes_option
from headrace.wire.acls import CLUSTER_NAME, Operation, Pattern, Permission, Resource

if TYPE_CHECKING:
    from headrace.client.admin import acls as acl_admin
else:
    acl_admin = LazyModule("headrace.client.admin.acls")

R = TypeVar("R")

_HEADINGS = ("principal", "permission", "operation", "resource", "name", "pattern", "host")
_TYPES = {kind.name.lower().replace("_", "-"): kind for kind in Resource if kind > Resource.ANY}
_OPERATIONS = {operation.name.lower().replace("_", "-"): operation for operation in Operation if operation > 1}
_PATTERNS = {"literal": Pattern.LITERAL, "prefixed": Pattern.PREFIXED}
_FILTER_PATTERNS = {**_PATTERNS, "match": Pattern.MATCH, "any": Pattern.ANY}
_PERMISSIONS = {"allow": Permission.ALLOW, "deny": Permission.DENY}


class _ResourceName(NamedTuple):
    kind: Resource
    name: str | None  # None: all names


@click.group()
def acl() -> None:
    """List, add and remove ACLs: who is permitted, or denied, to do what.

    Resources are written as TYPE:NAME: topic:orders, group:billing, transactional-id:load-7, user:ann,
    delegation-token:ID, or just cluster. The name * stands for all resources of a type.

    \b
    Exit codes of all subcommands: 0 success; 1 failure; 2 invalid usage; 3 no such ACL, or no broker; 130 interrupted.
    """


def _choice(values: Iterable[str]) -> click.Choice[str]:
    return click.Choice(list(values), case_sensitive=False)


def filter_options(command: Callable[..., R]) -> Callable[..., R]:
    """Decorate a command with the options that select ACLs, passed to it as `filters`."""

    @click.option("--principal", "principals", metavar="User:NAME", multiple=True, help="Of this user; repeatable.")
    @click.option("--resource", "resources", metavar="TYPE[:NAME]", multiple=True, help="On this resource; repeatable.")
    @click.option("--operation", "operations", type=_choice(_OPERATIONS), multiple=True, help="Repeatable.")
    @click.option("--permission", type=_choice(_PERMISSIONS), help="Only ACLs that permit, or that deny.")
    @click.option(
        "--pattern",
        type=_choice(_FILTER_PATTERNS),
        default="any",
        show_default=True,
        help="How the ACL's name is compared; match: all ACLs that apply to the named resource.",
    )
    @click.option("--host", metavar="ADDRESS", help="Only ACLs of this address; * are those of all addresses.")
    @functools.wraps(command)
    def filtered(
        *,
        principals: Sequence[str],
        resources: Sequence[str],
        operations: Sequence[str],
        permission: str | None,
        pattern: str,
        host: str | None,
        **kwargs: Any,
    ) -> R:
        users: list[str | None] = [_check_principal(principal) for principal in principals]
        named = [_parse_resource(text, may_be_type=pattern != "match") for text in resources]
        if pattern == "match" and not named:
            raise InvalidUsageError("--pattern match needs --resource TYPE:NAME: the resource that the ACLs apply to")
        filters = [
            acl_admin.AclBindingFilter(
                resource.kind,
                resource.name,
                principal,
                operation,
                Permission.ANY if permission is None else _PERMISSIONS[permission],
                _FILTER_PATTERNS[pattern],
                host,
            )
            for principal, resource, operation in product(
                users or [None],
                named or [_ResourceName(Resource.ANY, None)],
                [_OPERATIONS[operation] for operation in operations] or [Operation.ANY],
            )
        ]
        return command(filters=filters, **kwargs)

    return filtered


@acl.command(name="list")
@filter_options
@cluster_command
def list_(
    connection: ClusterConnection,
    filters: list[acl_admin.AclBindingFilter],
    output_format: str,
) -> None:
    """List ACLs: all, or those that the options select.

    \b
    headrace acl list --resource topic:orders --pattern match

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no broker; 130 interrupted.
    """
    with connection.admin() as admin:
        acls = sorted({acl for acl_filter in filters for acl in admin.describe_acls(acl_filter)})
    emit(output_format, {"acls": [_facts(acl) for acl in acls]}, _table(acls) if acls else "no ACLs")


@acl.command()
@click.option("--principal", "principals", metavar="User:NAME", multiple=True, required=True, help="Repeatable.")
@click.option("--resource", "resources", metavar="TYPE:NAME", multiple=True, required=True, help="Repeatable.")
@click.option("--operation", "operations", type=_choice(_OPERATIONS), multiple=True, required=True, help="Repeatable.")
@click.option("--permission", type=_choice(_PERMISSIONS), default="allow", show_default=True, help="deny takes effect.")
@click.option(
    "--pattern",
    type=_choice(_PATTERNS),
    default="literal",
    show_default=True,
    help="prefixed: on all resources whose name starts with NAME.",
)
@click.option("--host", "hosts", metavar="ADDRESS", multiple=True, default=["*"], help="Repeatable. [default: all]")
@cluster_command
def add(
    *,
    connection: ClusterConnection,
    principals: tuple[str, ...],
    resources: tuple[str, ...],
    operations: tuple[str, ...],
    permission: str,
    pattern: str,
    hosts: tuple[str, ...],
    output_format: str,
) -> None:
    """Add ACLs: one for each combination of principal, resource, operation and host. Existing ones are kept.

    \b
    headrace acl add --principal User:ann --operation read --operation describe --resource topic:orders
    headrace acl add --principal User:etl --operation all --resource topic:etl- --pattern prefixed

    \b
    Exit codes: 0 the ACLs exist; 1 failure; 2 invalid usage; 3 no broker; 130 interrupted.
    """
    acls = [
        acl_admin.AclBinding(
            resource.kind,
            str(resource.name),
            principal,
            _OPERATIONS[operation],
            _PERMISSIONS[permission],
            _PATTERNS[pattern],
            host,
        )
        for principal, resource, operation, host in product(
            [_check_principal(principal) for principal in principals],
            [_parse_resource(text, may_be_type=False) for text in resources],
            operations,
            hosts,
        )
    ]
    with connection.admin() as admin:
        admin.create_acls(acls)
    emit(output_format, {"added": [_facts(acl) for acl in acls]}, "\n".join(f"added: {acl}" for acl in acls))


@acl.command()
@filter_options
@click.option("--all", "remove_all", is_flag=True, help="Remove all ACLs of the cluster.")
@yes_option
@cluster_command
def remove(
    *,
    connection: ClusterConnection,
    filters: list[acl_admin.AclBindingFilter],
    remove_all: bool,
    yes: bool,
    output_format: str,
) -> None:
    """Remove the ACLs that the options select. Shows them, and asks for confirmation at a terminal; elsewhere --yes is
    required.

    \b
    headrace acl remove --principal User:ann --resource topic:orders --yes

    \b
    Exit codes: 0 removed; 1 failure, or not confirmed; 2 invalid usage; 3 no such ACL, or no broker; 130 interrupted.
    """
    if (filters == [acl_admin.AclBindingFilter()]) != remove_all:
        raise InvalidUsageError("pass options that select ACLs, or --all to remove all ACLs of the cluster")
    with connection.admin() as admin:
        selected = sorted({acl for acl_filter in filters for acl in admin.describe_acls(acl_filter)})
        if not selected:
            raise ResourceNotFoundError("no ACL matches; `headrace acl list` shows the existing ones")
        if not yes:
            click.echo(_table(selected), err=True)
        if not confirm(f"Remove {_count(selected)}?", yes):
            raise CommandError("nothing was removed")
        # By the ACLs that were shown: those that were added in the meantime are kept.
        removed = admin.delete_acls(acl.as_filter() for acl in selected)
    emit(output_format, {"removed": [_facts(acl) for acl in removed]}, f"{_count(removed)} removed")


def _parse_resource(text: str, *, may_be_type: bool) -> _ResourceName:
    """Parse TYPE:NAME; with `may_be_type`, also TYPE for all resources of that type."""
    type_name, colon, name = text.partition(":")
    kind = _TYPES.get(type_name.lower())
    if kind is Resource.CLUSTER and name in ("", CLUSTER_NAME):
        return _ResourceName(kind, CLUSTER_NAME)
    if kind is None or kind is Resource.CLUSTER or (not name and (colon or not may_be_type)):
        raise InvalidUsageError(
            f"invalid --resource: expected TYPE:NAME, such as topic:orders, got {text!r}; types: {', '.join(_TYPES)}"
        )
    return _ResourceName(kind, name or None)


def _check_principal(text: str) -> str:
    kind, _, name = text.partition(":")
    if not kind or not name:
        raise InvalidUsageError(f"invalid --principal: expected User:NAME, got {text!r}")
    return text


def _count(acls: Sequence[acl_admin.AclBinding]) -> str:
    return count_text(len(acls), "ACL")


def _facts(acl: acl_admin.AclBinding) -> dict[str, str]:
    values = (acl.principal, acl.permission.name, acl.operation.name, acl.resource.name, acl.name, acl.pattern.name)
    return dict(zip(_HEADINGS, (*values, acl.host), strict=True))


def _table(acls: Iterable[acl_admin.AclBinding]) -> str:
    return render_table(_HEADINGS, [tuple(_facts(acl).values()) for acl in acls])
