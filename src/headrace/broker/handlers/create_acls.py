"""Key 30: new access rules. One that exists already is no error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.acl_requests import checked_rule, require_rules
from headrace.broker.catalog.acls import Acls
from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError
from headrace.wire.api.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: CreateAclsRequest) -> Answer:
    try:
        require_rules(broker, context, Operation.ALTER)
    except BrokerError as error:
        return failure(context, message, error.code)
    rules, results = [], []
    for wanted in message.creations:
        try:
            rules.append(checked_rule(wanted))
        except BrokerError as error:
            results.append(AclCreationResult(error_code=error.code, error_message=str(error.args[0])))
        else:
            results.append(AclCreationResult(error_message=None))
    fresh = [rule for rule in dict.fromkeys(rules) if rule not in broker.catalog.acls.rules]
    if fresh:
        broker.catalog.record(*map(Acls.creation, fresh))
    return CreateAclsResponse(results=results)


def failure(context: Context, message: CreateAclsRequest, code: int) -> CreateAclsResponse:
    result = AclCreationResult(error_code=code, error_message=None)
    return CreateAclsResponse(results=[result] * len(message.creations))
