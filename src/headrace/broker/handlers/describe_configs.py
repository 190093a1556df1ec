"""Key 32: every option of a topic or of this broker, with its value and where that comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.config_changes import check_resource
from headrace.broker.configs import TYPES, Entry, ResourceType, Source
from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError
from headrace.wire.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: DescribeConfigsRequest) -> Answer:
    return DescribeConfigsResponse(results=[_described(broker, context, message, row) for row in message.resources])


def _described(
    broker: Broker, context: Context, message: DescribeConfigsRequest, row: DescribeConfigsResource
) -> DescribeConfigsResult:
    name, wanted = row.resource_name, row.configuration_keys
    try:
        kind = check_resource(broker, context.session, row.resource_type, name, Operation.DESCRIBE_CONFIGS)
        every = broker.configurations
        entries = every.of_topic(name) if kind == ResourceType.TOPIC else every.of_broker(name)
        found = [_entry(context, message, entry) for entry in entries if not wanted or entry.option.name in wanted]
    except BrokerError as error:
        return DescribeConfigsResult(
            error_code=error.code,
            error_message=str(error.args[0]),
            resource_type=row.resource_type,
            resource_name=name,
        )
    return DescribeConfigsResult(error_message=None, resource_type=row.resource_type, resource_name=name, configs=found)


def _entry(context: Context, message: DescribeConfigsRequest, entry: Entry) -> DescribeConfigsResourceResult:
    option, synonyms = entry.option, entry.synonyms if message.include_synonyms else ()
    documentation = None
    if message.include_documentation:
        documentation = f"{option.doc} No effect here: {option.no_effect}." if option.no_effect else option.doc
    return DescribeConfigsResourceResult(
        name=option.name,
        value=entry.value,
        read_only=entry.read_only,
        is_default=context.api_version == 0 and entry.source == Source.DEFAULT,  # then the source says so
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source) for s in synonyms],
        config_type=TYPES[option.kind],
        documentation=documentation,
    )


def failure(context: Context, message: DescribeConfigsRequest, code: int) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(
                error_code=code, error_message=None, resource_type=row.resource_type, resource_name=row.resource_name
            )
            for row in message.resources
        ]
    )
