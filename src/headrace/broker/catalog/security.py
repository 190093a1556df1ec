"""ACLs and SCRAM credentials of the catalog. Passwords are not stored."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.broker.catalog.journal import Event
from headrace.wire.acls import Operation, Pattern, Permission, Resource

WILDCARD = "*"


class Acl(NamedTuple):
    """An ACL, with the numbers of `wire.acls`."""

    resource: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """A filter for ACLs; None or ANY matches every value of a field."""

    resource: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource in (Resource.ANY, acl.resource)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_name(acl)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern != Pattern.MATCH:
            return False
        return self.name.startswith(acl.name) if acl.pattern == Pattern.PREFIXED else acl.name == WILDCARD


class Acls:
    """All ACLs, without duplicates."""

    kinds = ("acl", "acl-deleted")

    def __init__(self) -> None:
        self.rules: dict[Acl, None] = {}  # in the order of creation
        self.version = 0  # counts changes; decisions are cached by it

    @staticmethod
    def creation(acl: Acl) -> Event:
        return {"kind": "acl", "rule": list(acl)}

    @staticmethod
    def deletion(acl: Acl) -> Event:
        return {"kind": "acl-deleted", "rule": list(acl)}

    def matching(self, acl_filter: AclFilter) -> list[Acl]:
        return [acl for acl in self.rules if acl_filter.matches(acl)]

    def apply(self, event: Event) -> None:
        acl = Acl(*event["rule"])
        if event["kind"] == "acl":
            self.rules[acl] = None
        else:
            self.rules.pop(acl, None)
        self.version += 1

    def snapshot(self) -> Iterator[Event]:
        yield from map(self.creation, self.rules)

    def changes_to(self, target: Acls) -> Iterator[Event]:
        """Yield events that turn this section into `target`."""
        yield from (self.deletion(acl) for acl in self.rules if acl not in target.rules)
        yield from (self.creation(acl) for acl in target.rules if acl not in self.rules)


@dataclass(frozen=True, slots=True)
class Credential:
    """A SCRAM credential as in RFC 5802. It does not allow a log-in, but guessing the password: hidden in the repr."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


class Users:
    """SCRAM credentials by user and mechanism (SCRAM-SHA-256, SCRAM-SHA-512)."""

    kinds = ("scram", "scram-deleted")

    def __init__(self) -> None:
        self.by_name: dict[str, dict[str, Credential]] = {}

    @staticmethod
    def change(user: str, mechanism: str, credential: Credential) -> Event:
        """Return the event that sets a credential of a user."""
        return {
            "kind": "scram",
            "user": user,
            "mechanism": mechanism,
            "iterations": credential.iterations,
            "salt": _base64(credential.salt),
            "stored": _base64(credential.stored_key),
            "server": _base64(credential.server_key),
        }

    @staticmethod
    def deletion(user: str, mechanism: str) -> Event:
        return {"kind": "scram-deleted", "user": user, "mechanism": mechanism}

    def credential(self, user: str, mechanism: str) -> Credential | None:
        return self.by_name.get(user, {}).get(mechanism)

    def apply(self, event: Event) -> None:
        user, mechanism = event["user"], event["mechanism"]
        if event["kind"] == "scram":
            salt, stored, server = (base64.b64decode(event[name]) for name in ("salt", "stored", "server"))
            self.by_name.setdefault(user, {})[mechanism] = Credential(event["iterations"], salt, stored, server)
            return
        self.by_name[user].pop(mechanism)
        if not self.by_name[user]:
            del self.by_name[user]

    def snapshot(self) -> Iterator[Event]:
        for user, credentials in self.by_name.items():
            for mechanism, credential in credentials.items():
                yield self.change(user, mechanism, credential)

    def changes_to(self, target: Users) -> Iterator[Event]:
        """Yield events that turn this section into `target`."""
        for user, credentials in self.by_name.items():
            for mechanism in credentials:
                if target.credential(user, mechanism) is None:
                    yield self.deletion(user, mechanism)
        for user, credentials in target.by_name.items():
            for mechanism, credential in credentials.items():
                if self.credential(user, mechanism) != credential:
                    yield self.change(user, mechanism, credential)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
