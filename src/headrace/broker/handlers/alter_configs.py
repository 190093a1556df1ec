"""Key 33: let these options, and no others, be set on a topic or broker. (Key 44 is the one to prefer.)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.config_changes import alter_each, check_resource, replace_all
from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code
from headrace.wire.api.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: AlterConfigsRequest) -> Answer:
    outcomes = alter_each(message.resources, lambda row: _alter(broker, context, message, row))
    return AlterConfigsResponse(responses=[_answer(*outcome) for outcome in outcomes])


def _alter(broker: Broker, context: Context, message: AlterConfigsRequest, row: AlterConfigsResource) -> None:
    kind = check_resource(broker, context.session, row.resource_type, row.resource_name, Operation.ALTER_CONFIGS)
    values = {config.name: config.value for config in row.configs}
    if len(values) < len(row.configs):
        raise BrokerError("an option is in the request twice", code=Code.INVALID_REQUEST)
    replace_all(broker, kind, row.resource_name, values, validate_only=message.validate_only)


def _answer(row: AlterConfigsResource, code: int, text: str | None = None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code, error_message=text, resource_type=row.resource_type, resource_name=row.resource_name
    )


def failure(context: Context, message: AlterConfigsRequest, code: int) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=[_answer(row, code) for row in message.resources])
