"""Key 29: the access rules that match a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.acl_requests import checked_filter, require_rules
from headrace.broker.catalog.acls import Acl
from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError
from headrace.wire.api.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: DescribeAclsRequest) -> Answer:
    try:
        require_rules(broker, context, Operation.DESCRIBE)
        found = broker.catalog.acls.matching(checked_filter(message))
    except BrokerError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=str(error.args[0]))
    by_resource: dict[tuple[int, str, int], list[Acl]] = {}
    for acl in found:
        by_resource.setdefault((acl.resource, acl.name, acl.pattern), []).append(acl)
    return DescribeAclsResponse(
        error_message=None,
        resources=[
            DescribeAclsResource(
                resource_type=resource, resource_name=name, pattern_type=pattern, acls=[_described(a) for a in acls]
            )
            for (resource, name, pattern), acls in by_resource.items()
        ],
    )


def _described(acl: Acl) -> AclDescription:
    return AclDescription(
        principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
    )
