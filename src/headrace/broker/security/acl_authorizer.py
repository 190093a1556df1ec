"""Access rules at work.

    a super user                                      yes
    a rule that matches says DENY                     no, whatever else is allowed
    a rule that matches says ALLOW                    yes
    no rule is about the thing, for whomever          allow.everyone.if.no.acl.found
    otherwise                                         no

Rules are found by name: those of exactly this one, those of `*`, and those of each prefix of it. Decisions are
remembered until a rule changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.broker.catalog.acls import WILDCARD, Acl, Acls, Pattern, Permission
from headrace.broker.context import Session
from headrace.broker.security.authorizer import Authorizer, Operation, Resource
from headrace.config import Config
from headrace.errors import ConfigError

DECISIONS_MAX = 50_000
"""When so many are remembered, all are forgotten: names may be made up by clients."""
ANY_PRINCIPAL = "User:*"
_NAMES = ("acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer")

_GRANTED_BY = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}),
}
"""What an ALLOW for another operation grants as well. (A DENY denies just what it says.)"""


def authorizer_of(config: Config, acls: Acls) -> Authorizer:
    """What authorizer.class.name asks for."""
    name = config.of(str, "authorizer.class.name")
    if not name:
        return Authorizer()
    if name not in _NAMES:
        raise ConfigError(f"authorizer.class.name is {name!r}; it may be empty, or one of {', '.join(_NAMES)}")
    return AclAuthorizer(
        acls,
        super_users=parse_super_users(config.of(str, "super.users")),
        open_by_default=config.of(bool, "allow.everyone.if.no.acl.found"),
    )


def parse_super_users(text: str) -> frozenset[str]:
    users = frozenset(filter(None, (part.strip() for part in text.split(";"))))
    for user in users:
        if ":" not in user:
            raise ConfigError(f"super.users has {user!r}; each must be User:name, with semicolons between them")
    return users


class AclAuthorizer(Authorizer):
    """Decides by the rules of the catalog."""

    keeps_rules = True

    def __init__(self, acls: Acls, *, super_users: frozenset[str] = frozenset(), open_by_default: bool = False) -> None:
        self._acls = acls
        self._super_users = super_users
        self._open_by_default = open_by_default
        self._version = -1  # of the rules that the index below was made from
        self._literal: dict[tuple[int, str], list[Acl]] = {}
        self._prefixed: dict[tuple[int, str], list[Acl]] = {}
        self._prefix_lengths: dict[int, list[int]] = {}  # by resource
        self._decisions: dict[tuple[str, str, int, int, str], bool] = {}

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        if self._version != self._acls.version:
            self._index()
        key = (session.principal, session.host, operation, resource, name)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            decision = self._decisions[key] = self._decide(session, operation, resource, name)
        return decision

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        if self.allows(session, operation, resource, "\0"):  # a name that no rule can have
            return True
        mine = [acl for acl in self._acls.rules if acl.resource == resource and _is_about(acl, session)]
        denied = [acl for acl in mine if _denies(acl, operation)]
        if any(acl.pattern == Pattern.LITERAL and acl.name == WILDCARD for acl in denied):
            return False
        return any(_allows(acl, operation) and not _is_covered(acl, denied) for acl in mine)

    def _decide(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        if session.principal in self._super_users:
            return True
        found = allowed = False
        for acl in self._about(resource, name):
            found = True
            if not _is_about(acl, session):
                continue
            if _denies(acl, operation):
                return False
            allowed = allowed or _allows(acl, operation)
        return allowed or (self._open_by_default and not found)

    def _about(self, resource: Resource, name: str) -> Iterator[Acl]:
        yield from self._literal.get((resource, name), ())
        if name != WILDCARD:
            yield from self._literal.get((resource, WILDCARD), ())
        for length in self._prefix_lengths.get(resource, ()):
            if length > len(name):
                break
            yield from self._prefixed.get((resource, name[:length]), ())

    def _index(self) -> None:
        self._decisions.clear()
        self._literal.clear()
        self._prefixed.clear()
        for acl in self._acls.rules:
            table = self._prefixed if acl.pattern == Pattern.PREFIXED else self._literal
            table.setdefault((acl.resource, acl.name), []).append(acl)
        lengths: dict[int, set[int]] = {}
        for resource, prefix in self._prefixed:
            lengths.setdefault(resource, set()).add(len(prefix))
        self._prefix_lengths = {resource: sorted(found) for resource, found in lengths.items()}
        self._version = self._acls.version


def _is_about(acl: Acl, session: Session) -> bool:
    return acl.principal in (session.principal, ANY_PRINCIPAL) and acl.host in (session.host, WILDCARD)


def _denies(acl: Acl, operation: Operation) -> bool:
    return acl.permission == Permission.DENY and acl.operation in (operation, Operation.ALL)


def _allows(acl: Acl, operation: Operation) -> bool:
    if acl.permission != Permission.ALLOW:
        return False
    granting = _GRANTED_BY.get(operation)
    return acl.operation in granting if granting else acl.operation in (operation, Operation.ALL)


def _is_covered(acl: Acl, denied: list[Acl]) -> bool:
    """Whether everything that a rule allows is denied again."""
    for deny in denied:
        if deny.pattern == Pattern.PREFIXED:
            if acl.name.startswith(deny.name) and acl.name != WILDCARD:
                return True
        elif acl.pattern == Pattern.LITERAL and acl.name == deny.name:
            return True
    return False
