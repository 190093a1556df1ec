"""DescribeAcls, CreateAcls and DeleteAcls."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from headrace.broker.catalog.security import Acl, AclFilter, Acls
from headrace.broker.context import Context, HandlerResult
from headrace.errors import BrokerError, Code
from headrace.wire.acls import CLUSTER_NAME, Operation, Pattern, Permission, Resource
from headrace.wire.api.access import (
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.wire.api.access import AclCreation, AclSelection

# -- DescribeAcls --------------------------------------------------------------------------------


def handle_describe_acls(broker: Broker, context: Context, request: DescribeAclsRequest) -> HandlerResult:
    """Return the ACLs that match a filter."""
    _require_acls(broker, context, Operation.DESCRIBE)
    acls = broker.catalog.acls.matching(_checked_filter(request))
    by_resource: dict[tuple[int, str, int], list[Acl]] = {}
    for acl in acls:
        by_resource.setdefault((acl.resource, acl.name, acl.pattern), []).append(acl)
    return DescribeAclsResponse(
        error_message=None,
        resources=[
            DescribeAclsResource(
                resource_type=resource, resource_name=name, pattern_type=pattern, acls=[_describe_acl(a) for a in acls]
            )
            for (resource, name, pattern), acls in by_resource.items()
        ],
    )


def _describe_acl(acl: Acl) -> AclDescription:
    return AclDescription(
        principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
    )


# -- CreateAcls ----------------------------------------------------------------------------------


def handle_create_acls(broker: Broker, context: Context, request: CreateAclsRequest) -> HandlerResult:
    """Create ACLs. Creating an existing ACL succeeds."""
    _require_acls(broker, context, Operation.ALTER)
    acls, results = [], []
    for creation in request.creations:
        try:
            acls.append(_checked_acl(creation))
        except BrokerError as error:
            results.append(AclCreationResult(error_code=error.code, error_message=str(error.args[0])))
        else:
            results.append(AclCreationResult(error_message=None))
    new_acls = [acl for acl in dict.fromkeys(acls) if acl not in broker.catalog.acls.rules]
    if new_acls:
        broker.catalog.record(*map(Acls.creation, new_acls))
    return CreateAclsResponse(results=results)


# -- DeleteAcls ----------------------------------------------------------------------------------


def handle_delete_acls(broker: Broker, context: Context, request: DeleteAclsRequest) -> HandlerResult:
    """Delete the ACLs that match filters, and return them."""
    _require_acls(broker, context, Operation.ALTER)
    acls = broker.catalog.acls
    deleted: dict[Acl, None] = {}  # an ACL that matches several filters is deleted once
    results = []
    for acl_filter in request.filters:
        try:
            matching = acls.matching(_checked_filter(acl_filter))
        except BrokerError as error:
            results.append(DeleteAclsFilterResult(error_code=error.code, error_message=str(error.args[0])))
            continue
        deleted.update(dict.fromkeys(matching))
        results.append(
            DeleteAclsFilterResult(error_message=None, matching_acls=[_deleted_acl(acl) for acl in matching])
        )
    if deleted:
        broker.catalog.record(*map(Acls.deletion, deleted))
    return DeleteAclsResponse(filter_results=results)


def _deleted_acl(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


# -- validation ----------------------------------------------------------------------------------


def _require_acls(broker: Broker, context: Context, operation: Operation) -> None:
    """Raise CLUSTER_AUTHORIZATION_FAILED if not authorized, SECURITY_DISABLED if the broker has no ACL authorizer."""
    broker.authorizer.require_on_cluster(context.session, operation)
    if not broker.authorizer.has_acls:
        raise BrokerError("ACLs are not enabled on this broker: set authorizer.class.name", code=Code.SECURITY_DISABLED)


def _checked_acl(requested: AclCreation) -> Acl:
    """Return the ACL to create, or raise INVALID_REQUEST."""
    resource = _checked_number(Resource, requested.resource_type, "resource type", Resource.UNKNOWN, Resource.ANY)
    pattern = _checked_number(
        Pattern, requested.resource_pattern_type, "pattern type", Pattern.UNKNOWN, Pattern.ANY, Pattern.MATCH
    )
    operation = _checked_number(Operation, requested.operation, "operation", Operation.UNKNOWN, Operation.ANY)
    permission = _checked_number(
        Permission, requested.permission_type, "permission", Permission.UNKNOWN, Permission.ANY
    )
    kind, colon, name = requested.principal.partition(":")
    if not kind or not colon or not name:
        raise _invalid(f"invalid principal {requested.principal!r}: expected User:name")
    if not requested.resource_name:
        raise _invalid("invalid ACL: the resource name is empty; use * for all")
    if resource == Resource.CLUSTER and requested.resource_name != CLUSTER_NAME:
        raise _invalid(f"invalid resource name {requested.resource_name!r}: ACLs of the cluster use {CLUSTER_NAME}")
    if not requested.host:
        raise _invalid("invalid ACL: the host is empty; use * for all")
    return Acl(resource, requested.resource_name, pattern, requested.principal, requested.host, operation, permission)


def _checked_filter(requested: AclSelection) -> AclFilter:
    """Return the filter, or raise INVALID_REQUEST."""
    return AclFilter(
        _checked_number(Resource, requested.resource_type_filter, "resource type", Resource.UNKNOWN),
        requested.resource_name_filter,
        _checked_number(Pattern, requested.pattern_type_filter, "pattern type", Pattern.UNKNOWN),
        requested.principal_filter,
        requested.host_filter,
        _checked_number(Operation, requested.operation, "operation", Operation.UNKNOWN),
        _checked_number(Permission, requested.permission_type, "permission", Permission.UNKNOWN),
    )


def _checked_number(kind: type[IntEnum], number: int, what: str, *invalid: IntEnum) -> int:
    allowed = [member for member in kind if member not in invalid]
    if number not in allowed:
        raise _invalid(f"invalid {what} {number}: expected one of {', '.join(member.name for member in allowed)}")
    return number


def _invalid(message: str) -> BrokerError:
    return BrokerError(message, code=Code.INVALID_REQUEST)
