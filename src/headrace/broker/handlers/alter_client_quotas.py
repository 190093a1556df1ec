"""Key 49: set quotas of users, clients and addresses, or take them away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.catalog import Event
from headrace.broker.catalog.quotas import Quotas, entity
from headrace.broker.context import Answer, Context
from headrace.broker.quota_requests import check_types, check_value
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code
from headrace.wire.api.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityDataResponse,
    EntryDataRequest,
    EntryDataResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: AlterClientQuotasRequest) -> Answer:
    try:
        require_on_cluster(broker.authorizer, context.session, Operation.ALTER_CONFIGS)
    except BrokerError as error:
        return failure(context, message, error.code)
    events, results = [], []
    for entry in message.entries:
        try:
            events.append(_change(entry))
        except BrokerError as error:
            results.append(_answer(entry, error.code, str(error.args[0])))
        else:
            results.append(_answer(entry, Code.NONE))
    if events and not message.validate_only:
        broker.catalog.record(*events)
    return AlterClientQuotasResponse(entries=results)


def _change(entry: EntryDataRequest) -> Event:
    parts = {part.entity_type: part.entity_name for part in entry.entity}
    if not parts or len(parts) < len(entry.entity):
        raise BrokerError("an entity has one or more parts, each type once", code=Code.INVALID_REQUEST)
    check_types(parts)
    if "" in parts.values():
        raise BrokerError("a name of an entity cannot be empty; null is the default", code=Code.INVALID_REQUEST)
    values: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key in values:
            raise BrokerError(f"{op.key} is in the request twice", code=Code.INVALID_REQUEST)
        values[op.key] = check_value(parts, op.key, None if op.remove else op.value)
    return Quotas.change(entity(parts), values)


def _answer(entry: EntryDataRequest, code: int, text: str | None = None) -> EntryDataResponse:
    parts = [EntityDataResponse(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity]
    return EntryDataResponse(error_code=code, error_message=text, entity=parts)


def failure(context: Context, message: AlterClientQuotasRequest, code: int) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(entries=[_answer(entry, code) for entry in message.entries])
