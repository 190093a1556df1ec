"""Authorization: whether a principal may perform an operation on a resource.

`Authorizer` permits everything. `AclAuthorizer` decides by the ACLs of the catalog:

    the principal is a super user                     allowed
    a matching ACL says DENY                          denied
    a matching ACL says ALLOW                         allowed
    the resource has no ACL for any principal         allow.everyone.if.no.acl.found
    otherwise                                         denied
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.broker.catalog.security import WILDCARD, Acl, Acls
from headrace.broker.context import Session
from headrace.config import Config
from headrace.errors import BrokerError, Code, ConfigError
from headrace.wire.acls import CLUSTER_NAME, Operation, Pattern, Permission, Resource

__all__ = [
    "ANY_PRINCIPAL",
    "CLUSTER_NAME",
    "DECISIONS_MAX",
    "AclAuthorizer",
    "Authorizer",
    "Operation",
    "Resource",
    "create_authorizer",
    "parse_super_users",
]

ANY_PRINCIPAL = "User:*"
DECISIONS_MAX = 50_000
"""The size of the decision cache. It is cleared when full: clients may invent any number of names."""

_AUTHORIZATION_ERRORS = {
    Resource.TOPIC: Code.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: Code.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: Code.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

_VALID_OPERATIONS = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""The operations that exist for each type of resource."""

_IMPLIED_BY = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}),
}
"""The operations whose ALLOW permits these two as well. A DENY denies only its own operation."""


class Authorizer:
    """Permits everything."""

    has_acls = False
    """Whether ACLs are evaluated; otherwise they can be neither created nor listed."""

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        return True

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        """Return whether the operation is permitted on at least one resource, which need not exist yet."""
        return True

    def allows_idempotent_write(self, session: Session) -> bool:
        """Return whether a producer without transactions gets a producer id (KIP-679)."""
        return self.allows_any(session, Operation.WRITE, Resource.TOPIC) or self.allows(
            session, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME
        )

    def require(self, session: Session, operation: Operation, resource: Resource, name: str) -> None:
        """Raise the authorization error of the resource type if the operation is denied."""
        if not self.allows(session, operation, resource, name):
            raise BrokerError(
                f"{session.principal} is not authorized to {operation.name} {resource.name.lower()} {name}",
                code=_AUTHORIZATION_ERRORS[resource],
            )

    def require_on_cluster(self, session: Session, operation: Operation) -> None:
        """Raise CLUSTER_AUTHORIZATION_FAILED if the operation on the cluster is denied."""
        self.require(session, operation, Resource.CLUSTER, CLUSTER_NAME)

    def authorized_operations(self, session: Session, resource: Resource, name: str) -> int:
        """Return the permitted operations as bits, for the fields `…authorized_operations` (KIP-430)."""
        bits = 0
        for operation in _VALID_OPERATIONS[resource]:
            if self.allows(session, operation, resource, name):
                bits |= 1 << operation
        return bits


class AclAuthorizer(Authorizer):
    """Decides by the ACLs of the catalog. Decisions are cached until an ACL changes."""

    has_acls = True

    def __init__(self, acls: Acls, *, super_users: frozenset[str] = frozenset(), open_by_default: bool = False) -> None:
        self._acls = acls
        self._super_users = super_users
        self._open_by_default = open_by_default
        self._version = -1  # of the ACLs in the index
        # The index: ACLs by resource type and name, or by resource type and prefix.
        self._literal: dict[tuple[int, str], list[Acl]] = {}
        self._prefixed: dict[tuple[int, str], list[Acl]] = {}
        self._prefix_lengths: dict[int, list[int]] = {}  # by resource type
        self._decisions: dict[tuple[str, str, int, int, str], bool] = {}

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        if self._version != self._acls.version:
            self._rebuild_index()
        key = (session.principal, session.host, operation, resource, name)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            decision = self._decisions[key] = self._decide(session, operation, resource, name)
        return decision

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        if self.allows(session, operation, resource, "\0"):  # a name that no ACL can have
            return True
        applicable = [acl for acl in self._acls.rules if acl.resource == resource and _applies_to(acl, session)]
        denied = [acl for acl in applicable if _denies(acl, operation)]
        if any(acl.pattern == Pattern.LITERAL and acl.name == WILDCARD for acl in denied):
            return False
        return any(_allows(acl, operation) and not _is_covered(acl, denied) for acl in applicable)

    def _decide(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        if session.principal in self._super_users:
            return True
        has_acl = allowed = False
        for acl in self._acls_of(resource, name):
            has_acl = True
            if not _applies_to(acl, session):
                continue
            if _denies(acl, operation):
                return False
            allowed = allowed or _allows(acl, operation)
        return allowed or (self._open_by_default and not has_acl)

    def _acls_of(self, resource: Resource, name: str) -> Iterator[Acl]:
        yield from self._literal.get((resource, name), ())
        if name != WILDCARD:
            yield from self._literal.get((resource, WILDCARD), ())
        for length in self._prefix_lengths.get(resource, ()):
            if length > len(name):
                break
            yield from self._prefixed.get((resource, name[:length]), ())

    def _rebuild_index(self) -> None:
        self._decisions.clear()
        self._literal.clear()
        self._prefixed.clear()
        for acl in self._acls.rules:
            table = self._prefixed if acl.pattern == Pattern.PREFIXED else self._literal
            table.setdefault((acl.resource, acl.name), []).append(acl)
        lengths: dict[int, set[int]] = {}
        for resource, prefix in self._prefixed:
            lengths.setdefault(resource, set()).add(len(prefix))
        self._prefix_lengths = {resource: sorted(values) for resource, values in lengths.items()}
        self._version = self._acls.version


def _applies_to(acl: Acl, session: Session) -> bool:
    return acl.principal in (session.principal, ANY_PRINCIPAL) and acl.host in (session.host, WILDCARD)


def _denies(acl: Acl, operation: Operation) -> bool:
    return acl.permission == Permission.DENY and acl.operation in (operation, Operation.ALL)


def _allows(acl: Acl, operation: Operation) -> bool:
    if acl.permission != Permission.ALLOW:
        return False
    implied_by = _IMPLIED_BY.get(operation)
    return acl.operation in implied_by if implied_by else acl.operation in (operation, Operation.ALL)


def _is_covered(acl: Acl, denied: list[Acl]) -> bool:
    """Return whether everything that an ACL allows is denied by others."""
    for deny in denied:
        if deny.pattern == Pattern.PREFIXED:
            if acl.name.startswith(deny.name) and acl.name != WILDCARD:
                return True
        elif acl.pattern == Pattern.LITERAL and acl.name == deny.name:
            return True
    return False


_ACL_AUTHORIZERS = ("acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer")


def create_authorizer(config: Config, acls: Acls) -> Authorizer:
    """Return the authorizer that authorizer.class.name selects."""
    name = config.of(str, "authorizer.class.name")
    if not name:
        return Authorizer()
    if name not in _ACL_AUTHORIZERS:
        raise ConfigError(
            f"invalid authorizer.class.name {name!r}: expected an empty value or one of {', '.join(_ACL_AUTHORIZERS)}"
        )
    return AclAuthorizer(
        acls,
        super_users=parse_super_users(config.of(str, "super.users")),
        open_by_default=config.of(bool, "allow.everyone.if.no.acl.found"),
    )


def parse_super_users(text: str) -> frozenset[str]:
    users = frozenset(filter(None, (part.strip() for part in text.split(";"))))
    for user in users:
        if ":" not in user:
            raise ConfigError(f"invalid super.users entry {user!r}: expected User:name, separated by semicolons")
    return users
