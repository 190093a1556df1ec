"""Key 44: set, take back, append to or subtract from options of a topic or broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.config_changes import Change, alter_each, change, check_resource
from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import Operation
from headrace.wire.api.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: IncrementalAlterConfigsRequest) -> Answer:
    outcomes = alter_each(message.resources, lambda row: _alter(broker, context, message, row))
    return IncrementalAlterConfigsResponse(responses=[_answer(*outcome) for outcome in outcomes])


def _alter(
    broker: Broker, context: Context, message: IncrementalAlterConfigsRequest, row: AlterConfigsResource
) -> None:
    kind = check_resource(broker, context.session, row.resource_type, row.resource_name, Operation.ALTER_CONFIGS)
    changes = [Change(config.name, config.config_operation, config.value) for config in row.configs]
    change(broker, kind, row.resource_name, changes, validate_only=message.validate_only)


def _answer(row: AlterConfigsResource, code: int, text: str | None = None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code, error_message=text, resource_type=row.resource_type, resource_name=row.resource_name
    )


def failure(context: Context, message: IncrementalAlterConfigsRequest, code: int) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(responses=[_answer(row, code) for row in message.resources])
