"""Access page: ACLs, SCRAM users and client quotas. Passwords are set by `headrace user`, not in the browser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TypeVar

from nicegui import ui

from headrace.client.admin import (
    DEFAULT,
    AclBinding,
    AdminClient,
    DeleteScramCredential,
    Operation,
    Pattern,
    Permission,
    QuotaEntity,
    Resource,
)
from headrace.errors import ConfigError
from headrace.ui import formatting
from headrace.ui.access_feeds import QuotaValue, ScramUser, acls_feed, quotas_feed, users_feed
from headrace.ui.actions import button, run_action
from headrace.ui.collector import Feed
from headrace.ui.elements import Problem, Select, Text, TextField, form, section
from headrace.ui.frame import frame
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View
from headrace.wire.acls import CLUSTER_NAME

ACL_COLUMNS = (
    Column("principal", "Principal", "mono", sortable=True),
    Column("permission", "Permission", "state", sortable=True),
    Column("operation", "Operation", sortable=True),
    Column("resource", "Resource", sortable=True),
    Column("name", "Name", "mono", sortable=True),
    Column("pattern", "Pattern"),
    Column("host", "Host", "mono"),
    Column("remove", "", "action"),
)
USER_COLUMNS = (
    Column("user", "User", "mono", sortable=True),
    Column("mechanism", "Mechanism", sortable=True),
    Column("iterations", "Iterations", "number"),
    Column("remove", "", "action"),
)
QUOTA_COLUMNS = (
    Column("entity", "Applies to", sortable=True),
    Column("key", "Quota", "mono", sortable=True),
    Column("value", "Value", "number", sortable=True),
    Column("remove", "", "action"),
)
ENTITIES = {"user": "user", "client_id": "client id", "ip": "IP address"}

T = TypeVar("T")
E = TypeVar("E", bound=IntEnum)


def build(view: View) -> None:
    @ui.page("/access")
    def access() -> None:
        with frame(view, "Access", "/access") as page:
            for table in (_acls(view), _users(view), _quotas(view)):
                page.live(table.refresh)


def _table(
    view: View,
    label: str,
    columns: Sequence[Column],
    feed: Feed[list[T]],
    make_row: Callable[[T], Row],
    *,
    empty: str,
) -> ServerTable:
    """A table of a feed's items; all text columns are searched, and sorted if they are sortable."""

    def rows(query: Query) -> Rows:
        items = feed.get()
        if items is None:
            return Rows([], 0, feed.failure.text if feed.failure else None)
        keys = {column.name: _sort_key(make_row, column.name) for column in columns}
        page = paged(query, items, make_row, keys=keys, text=lambda item: " ".join(map(str, make_row(item).values())))
        return page._replace(problem=feed.failure.text if feed.failure else None)

    shown = columns[:-1] if view.read_only else columns
    return ServerTable(label, shown, rows, row_key="id", empty=empty, search=label, page_rows=10)


def _sort_key(make_row: Callable[[T], Row], name: str) -> Callable[[T], object]:
    return lambda item: make_row(item)[name]


# -- ACLs ----------------------------------------------------------------------------------------


def _acls(view: View) -> ServerTable:
    feed = acls_feed(view.cluster)
    with section("ACLs"):
        if not view.read_only:
            _acl_form(view)
        table = _table(view, "ACLs", ACL_COLUMNS, feed, _acl_row, empty="No ACLs. Add them with `headrace acl add`.")
        problem = Problem()

        async def remove(row: Row) -> None:
            acl = next((acl for acl in feed.value or () if str(acl) == row["id"]), None)
            if acl is not None:
                await run_action(
                    view,
                    problem,
                    lambda admin: admin.delete_acls([acl.as_filter()]),
                    name="Remove ACL",
                    done="ACL removed",
                    confirm=f"Remove this ACL? {acl}. It takes effect at once.",
                )

        table.on_action("remove", remove)
    return table


def _acl_row(acl: AclBinding) -> Row:
    is_allowed = acl.permission is Permission.ALLOW
    return {
        "id": str(acl),
        "principal": acl.principal,
        "permission": acl.permission.name.lower(),
        "permission_mark": "✔" if is_allowed else "✖",
        "permission_tone": "good" if is_allowed else "bad",
        "operation": _label(acl.operation),
        "resource": _label(acl.resource),
        "name": acl.name,
        "pattern": _label(acl.pattern),
        "host": "all" if acl.host == "*" else acl.host,
        "remove": "Remove",
    }


def _acl_form(view: View) -> None:
    with form("Add ACL"):
        principal = TextField("Principal", placeholder="User:ann")
        permission = Select("Permission", {"ALLOW": "allow", "DENY": "deny"})
        operation = Select("Operation", _labels(Operation, Operation.ALL), Operation.READ.name)
        resource = Select("Resource", _labels(Resource, Resource.TOPIC))
        name = TextField("Resource name", placeholder="orders, or * for all")
        pattern = Select("Pattern", _labels(Pattern, Pattern.LITERAL))

        async def add() -> None:
            kind = Resource[resource.value]
            acl = AclBinding(
                kind,
                CLUSTER_NAME if kind is Resource.CLUSTER else name.value.strip(),
                principal.value.strip(),
                Operation[operation.value],
                Permission[permission.value],
                Pattern[pattern.value],
            )
            await run_action(
                view, problem, _changed(lambda admin: admin.create_acls([acl])), name="Add ACL", done="ACL added"
            )

        button("Add ACL", add).classes("hr-primary")
    problem = Problem()


# -- users ---------------------------------------------------------------------------------------


def _users(view: View) -> ServerTable:
    feed = users_feed(view.cluster)
    with section("SCRAM users"):
        table = _table(view, "SCRAM users", USER_COLUMNS, feed, _user_row, empty="No SCRAM users.")
        Text("p", "Set passwords with `headrace user add` and `headrace user alter`.").classes("hr-note")
        problem = Problem()

        async def remove(row: Row) -> None:
            user, mechanism = str(row["user"]), str(row["mechanism"])
            await run_action(
                view,
                problem,
                _changed(lambda admin: admin.alter_user_scram_credentials([DeleteScramCredential(user, mechanism)])),
                name="Remove user",
                done=f"User {user} removed",
                confirm=f"Remove user {user} ({mechanism})? It cannot authenticate with this mechanism any more.",
            )

        table.on_action("remove", remove)
    return table


def _user_row(user: ScramUser) -> Row:
    return {
        "id": f"{user.mechanism} {user.name}",
        "user": user.name,
        "mechanism": user.mechanism,
        "iterations": formatting.count(user.iterations),
        "remove": "Remove",
    }


# -- quotas --------------------------------------------------------------------------------------


def _quotas(view: View) -> ServerTable:
    feed = quotas_feed(view.cluster)
    with section("Client quotas"):
        if not view.read_only:
            _quota_form(view)
        table = _table(view, "client quotas", QUOTA_COLUMNS, feed, _quota_row, empty="No client quotas.")
        problem = Problem()

        async def remove(row: Row) -> None:
            quota = next((quota for quota in feed.value or () if _quota_row(quota)["id"] == row["id"]), None)
            if quota is not None:
                await run_action(
                    view,
                    problem,
                    _changed(lambda admin: admin.alter_client_quotas({quota.entity: {quota.key: None}})),
                    name="Remove quota",
                    done="Quota removed",
                    confirm=f"Remove {quota.key} of {quota.entity}?",
                )

        table.on_action("remove", remove)
    return table


def _quota_row(quota: QuotaValue) -> Row:
    return {
        "id": f"{quota.key} {quota.entity}",
        "entity": str(quota.entity),
        "key": quota.key,
        "value": f"{quota.value:,g}",
        "remove": "Remove",
    }


def _quota_form(view: View) -> None:
    with form("Set quota"):
        kind = Select("Applies to", ENTITIES)
        name = TextField("Name", placeholder="empty: the default")
        key = TextField("Quota", "producer_byte_rate", wide=True)
        value = TextField("Value", kind="number")

        async def change() -> None:
            entity = QuotaEntity(**{kind.value: name.value.strip() or DEFAULT})

            def set_quota(admin: AdminClient) -> None:
                admin.alter_client_quotas({entity: {key.value.strip(): _number(value.value)}})

            done = f"{key.value} of {entity} set"
            await run_action(view, problem, _changed(set_quota), name="Set quota", done=done)

        button("Set quota", change).classes("hr-primary")
    problem = Problem()


# -- values --------------------------------------------------------------------------------------


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"invalid value: expected a number, got {text!r}") from None


def _label(member: IntEnum) -> str:
    return member.name.lower().replace("_", " ")


def _labels(kind: type[E], first: E) -> dict[str, str]:
    return {member.name: _label(member) for member in kind if member >= first}


def _changed(change: Callable[[AdminClient], None]) -> Callable[[AdminClient], bool]:
    """Return an action that makes a change and returns True: None would mean that it was not done."""

    def action(admin: AdminClient) -> bool:
        change(admin)
        return True

    return action
