"""Key 31: delete the access rules that match filters, and say which they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.acl_requests import checked_filter, require_rules
from headrace.broker.catalog.acls import Acl, Acls
from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError
from headrace.wire.api.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: DeleteAclsRequest) -> Answer:
    try:
        require_rules(broker, context, Operation.ALTER)
    except BrokerError as error:
        return failure(context, message, error.code)
    acls = broker.catalog.acls
    gone: dict[Acl, None] = {}  # those that two filters match are named by both
    results = []
    for wanted in message.filters:
        try:
            found = acls.matching(checked_filter(wanted))
        except BrokerError as error:
            results.append(DeleteAclsFilterResult(error_code=error.code, error_message=str(error.args[0])))
            continue
        gone.update(dict.fromkeys(found))
        results.append(DeleteAclsFilterResult(error_message=None, matching_acls=[_deleted(acl) for acl in found]))
    if gone:
        broker.catalog.record(*map(Acls.deletion, gone))
    return DeleteAclsResponse(filter_results=results)


def _deleted(acl: Acl) -> DeleteAclsMatchingAcl:
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


def failure(context: Context, message: DeleteAclsRequest, code: int) -> DeleteAclsResponse:
    result = DeleteAclsFilterResult(error_code=code, error_message=None)
    return DeleteAclsResponse(filter_results=[result] * len(message.filters))
