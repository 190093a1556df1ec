"""Key 48: the quotas of entities that match."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.catalog.quotas import Entity
from headrace.broker.context import Answer, Context
from headrace.broker.quota_requests import check_types
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code
from headrace.wire.api.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

_EXACT, _DEFAULT, _ANY = 0, 1, 2


def handle(broker: Broker, context: Context, message: DescribeClientQuotasRequest) -> Answer:
    try:
        require_on_cluster(broker.authorizer, context.session, Operation.DESCRIBE_CONFIGS)
        components = _checked(message)
    except BrokerError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=str(error.args[0]), entries=None)
    entries = []
    for entity, values in broker.catalog.quotas.by_entity.items():
        if _matches(entity, components, strict=message.strict):
            parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
            rows = [ValueData(key=key, value=value) for key, value in values.items()]
            entries.append(EntryData(entity=parts, values=rows))
    return DescribeClientQuotasResponse(error_message=None, entries=entries)


def _checked(message: DescribeClientQuotasRequest) -> dict[str, ComponentData]:
    components = {component.entity_type: component for component in message.components}
    if len(components) < len(message.components):
        raise BrokerError("a type of entity is in the filter twice", code=Code.INVALID_REQUEST)
    check_types(components)
    for component in components.values():
        if component.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise BrokerError(f"there is no way to match {component.match_type}", code=Code.INVALID_REQUEST)
        if (component.match_type == _EXACT) != (component.match is not None):
            raise BrokerError("a name goes with an exact match, and only with that", code=Code.INVALID_REQUEST)
    return components


def _matches(entity: Entity, components: dict[str, ComponentData], *, strict: bool) -> bool:
    parts = dict(entity)
    if strict and parts.keys() != components.keys():
        return False
    return all(
        kind in parts and (component.match_type == _ANY or parts[kind] == component.match)
        for kind, component in components.items()
    )
