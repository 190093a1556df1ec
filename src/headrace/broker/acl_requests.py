"""What the requests about access rules have in common: the right to make them, what a rule or a filter may be."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from headrace.broker.catalog.acls import Acl, AclFilter, Pattern, Permission
from headrace.broker.context import Context
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.wire.api.create_acls import AclCreation
    from headrace.wire.api.delete_acls import DeleteAclsFilter
    from headrace.wire.api.describe_acls import DescribeAclsRequest


def require_rules(broker: Broker, context: Context, operation: Operation) -> None:
    """Raise SECURITY_DISABLED where no rule would ever be asked, CLUSTER_AUTHORIZATION_FAILED without the right."""
    require_on_cluster(broker.authorizer, context.session, operation)
    if not broker.authorizer.keeps_rules:
        raise BrokerError(
            "no authorizer is configured on this broker (authorizer.class.name)", code=Code.SECURITY_DISABLED
        )


def checked_rule(wanted: AclCreation) -> Acl:
    """A rule as it is to be made, or INVALID_REQUEST."""
    resource = _one(Resource, wanted.resource_type, "resource type", Resource.UNKNOWN, Resource.ANY)
    pattern = _one(Pattern, wanted.resource_pattern_type, "pattern type", Pattern.UNKNOWN, Pattern.ANY, Pattern.MATCH)
    operation = _one(Operation, wanted.operation, "operation", Operation.UNKNOWN, Operation.ANY)
    permission = _one(Permission, wanted.permission_type, "permission", Permission.UNKNOWN, Permission.ANY)
    kind, colon, name = wanted.principal.partition(":")
    if not kind or not colon or not name:
        raise _invalid(f"a principal is written User:name, not {wanted.principal!r}")
    if not wanted.resource_name:
        raise _invalid("a rule needs the name of a resource, or *")
    if resource == Resource.CLUSTER and wanted.resource_name != CLUSTER_NAME:
        raise _invalid(f"the cluster is called {CLUSTER_NAME} in rules, not {wanted.resource_name!r}")
    if not wanted.host:
        raise _invalid("a rule needs a host, or *")
    return Acl(resource, wanted.resource_name, pattern, wanted.principal, wanted.host, operation, permission)


def checked_filter(wanted: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """A filter, or INVALID_REQUEST."""
    return AclFilter(
        _one(Resource, wanted.resource_type_filter, "resource type", Resource.UNKNOWN),
        wanted.resource_name_filter,
        _one(Pattern, wanted.pattern_type_filter, "pattern type", Pattern.UNKNOWN),
        wanted.principal_filter,
        wanted.host_filter,
        _one(Operation, wanted.operation, "operation", Operation.UNKNOWN),
        _one(Permission, wanted.permission_type, "permission", Permission.UNKNOWN),
    )


def _one(kind: type[IntEnum], number: int, what: str, *refused: IntEnum) -> int:
    allowed = [member for member in kind if member not in refused]
    if number not in allowed:
        raise _invalid(f"there is no {what} {number} here; there are {', '.join(member.name for member in allowed)}")
    return number


def _invalid(message: str) -> BrokerError:
    return BrokerError(message, code=Code.INVALID_REQUEST)
