"""Key 44: set, take back, append to or subtract from options of a topic or broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.config_changes import Change, change, check_resource, check_unique
from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code
from headrace.wire.api.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: IncrementalAlterConfigsRequest) -> Answer:
    named = [(row.resource_type, row.resource_name) for row in message.resources]
    answers = []
    for row in message.resources:
        try:
            check_unique(named, row.resource_type, row.resource_name)
            _alter(broker, context, message, row)
        except BrokerError as error:
            answers.append(_answer(row, error.code, str(error.args[0])))
        else:
            answers.append(_answer(row, Code.NONE))
    return IncrementalAlterConfigsResponse(responses=answers)


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
