"""DescribeClientQuotas and AlterClientQuotas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.broker.catalog import Event
from headrace.broker.catalog.configs import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    Quotas,
    quota_entity,
)
from headrace.broker.context import Context, HandlerResult
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code
from headrace.wire.api.access import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    EntryDataRequest,
    EntryDataResponse,
    ValueData,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# -- DescribeClientQuotas ------------------------------------------------------------------------


_EXACT, _DEFAULT, _ANY = 0, 1, 2


def handle_describe_client_quotas(
    broker: Broker, context: Context, request: DescribeClientQuotasRequest
) -> HandlerResult:
    """Return the quotas of the matching entities."""
    try:
        broker.authorizer.require_on_cluster(context.session, Operation.DESCRIBE_CONFIGS)
        components = _checked_components(request)
    except BrokerError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=str(error.args[0]), entries=None)
    entries = []
    for entity, values in broker.catalog.quotas.by_entity.items():
        if _matches(entity, components, strict=request.strict):
            parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
            rows = [ValueData(key=key, value=value) for key, value in values.items()]
            entries.append(EntryData(entity=parts, values=rows))
    return DescribeClientQuotasResponse(error_message=None, entries=entries)


def _checked_components(request: DescribeClientQuotasRequest) -> dict[str, ComponentData]:
    components = {component.entity_type: component for component in request.components}
    if len(components) < len(request.components):
        raise BrokerError("invalid filter: duplicate entity type", code=Code.INVALID_REQUEST)
    _check_types(components)
    for component in components.values():
        if component.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise BrokerError(
                f"invalid match type {component.match_type}: expected 0 (exact), 1 (default) or 2 (any)",
                code=Code.INVALID_REQUEST,
            )
        if (component.match_type == _EXACT) != (component.match is not None):
            raise BrokerError(
                "invalid filter: a name is required for an exact match, and invalid otherwise",
                code=Code.INVALID_REQUEST,
            )
    return components


def _matches(entity: Entity, components: dict[str, ComponentData], *, strict: bool) -> bool:
    parts = dict(entity)
    if strict and parts.keys() != components.keys():
        return False
    return all(
        kind in parts and (component.match_type == _ANY or parts[kind] == component.match)
        for kind, component in components.items()
    )


# -- AlterClientQuotas ---------------------------------------------------------------------------


def handle_alter_client_quotas(broker: Broker, context: Context, request: AlterClientQuotasRequest) -> HandlerResult:
    """Set or remove quotas of users, client ids and IP addresses."""
    try:
        broker.authorizer.require_on_cluster(context.session, Operation.ALTER_CONFIGS)
    except BrokerError as error:
        return fail_alter_client_quotas(context, request, error.code)
    events, results = [], []
    for entry in request.entries:
        try:
            events.append(_quota_change(entry))
        except BrokerError as error:
            results.append(_altered_entry(entry, error.code, str(error.args[0])))
        else:
            results.append(_altered_entry(entry, Code.NONE))
    if events and not request.validate_only:
        broker.catalog.record(*events)
    return AlterClientQuotasResponse(entries=results)


def _quota_change(entry: EntryDataRequest) -> Event:
    parts = {part.entity_type: part.entity_name for part in entry.entity}
    if not parts or len(parts) < len(entry.entity):
        raise BrokerError("invalid entity: expected one or more entity types, each once", code=Code.INVALID_REQUEST)
    _check_types(parts)
    if "" in parts.values():
        raise BrokerError("invalid entity: the name is empty; null selects the default", code=Code.INVALID_REQUEST)
    values: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key in values:
            raise BrokerError(f"duplicate quota {op.key}", code=Code.INVALID_REQUEST)
        values[op.key] = _check_value(parts, op.key, None if op.remove else op.value)
    return Quotas.change(quota_entity(parts), values)


def _altered_entry(entry: EntryDataRequest, code: int, text: str | None = None) -> EntryDataResponse:
    parts = [EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity]
    return EntryDataResponse(error_code=code, error_message=text, entity=parts)


def fail_alter_client_quotas(
    context: Context, request: AlterClientQuotasRequest, code: int
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(entries=[_altered_entry(entry, code) for entry in request.entries])


# -- validation ----------------------------------------------------------------------------------


_CLIENT_QUOTAS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
_IP_QUOTAS = (CONNECTION_CREATION_RATE,)
_INTEGER_QUOTAS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE)


def _check_types(types: Iterable[str]) -> None:
    """Raise unless the entity types are user, client-id or both, or ip alone."""
    given = set(types)
    for kind in sorted(given - {USER, CLIENT_ID, IP}):
        raise BrokerError(
            f"invalid entity type {kind!r}: expected {USER}, {CLIENT_ID} or {IP}", code=Code.UNSUPPORTED_VERSION
        )
    if IP in given and len(given) > 1:
        raise BrokerError(
            f"invalid entity: {IP} cannot be combined with {USER} or {CLIENT_ID}", code=Code.INVALID_REQUEST
        )


def _check_value(parts: Mapping[str, str | None], key: str, value: float | None) -> float | None:
    """Return the value of a quota, None if it is removed, or raise INVALID_REQUEST."""
    known = _IP_QUOTAS if IP in parts else _CLIENT_QUOTAS
    if key not in known:
        raise BrokerError(
            f"invalid quota {key!r} of {' and '.join(sorted(parts))}: expected one of {', '.join(known)}",
            code=Code.INVALID_REQUEST,
        )
    if value is None:
        return None
    if not math.isfinite(value) or value <= 0:
        raise BrokerError(f"invalid {key} {value}: expected more than 0", code=Code.INVALID_REQUEST)
    if key in _INTEGER_QUOTAS and value != int(value):
        raise BrokerError(f"invalid {key} {value}: expected a whole number", code=Code.INVALID_REQUEST)
    return value
