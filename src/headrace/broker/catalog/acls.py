"""Access rules: who may, or may not, do what to what, from where."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from headrace.broker.catalog.journal import Event

WILDCARD = "*"


class Pattern(IntEnum):
    """How the name of a rule is meant, by Kafka's numbers."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """What a rule says, by Kafka's numbers."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """A rule. Resource and operation are the numbers of `security.authorizer`."""

    resource: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """Which rules are meant; None, or ANY, leaves a field open."""

    resource: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource in (1, acl.resource)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (1, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._names(acl)
        )

    def _names(self, acl: Acl) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern != Pattern.MATCH:
            return False
        return self.name.startswith(acl.name) if acl.pattern == Pattern.PREFIXED else acl.name == WILDCARD


class Acls:
    """All rules, each once."""

    kinds = ("acl", "acl-deleted")

    def __init__(self) -> None:
        self.rules: dict[Acl, None] = {}  # in the order they came
        self.version = 0  # counts changes, for those who remember decisions

    @staticmethod
    def creation(acl: Acl) -> Event:
        return {"kind": "acl", "rule": list(acl)}

    @staticmethod
    def deletion(acl: Acl) -> Event:
        return {"kind": "acl-deleted", "rule": list(acl)}

    def matching(self, wanted: AclFilter) -> list[Acl]:
        return [acl for acl in self.rules if wanted.matches(acl)]

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
        """Events that make this section what `target` is."""
        yield from (self.deletion(acl) for acl in self.rules if acl not in target.rules)
        yield from (self.creation(acl) for acl in target.rules if acl not in self.rules)
