"""Key 74: what options can be set on. (Version 0 asks for subscriptions to clients' metrics: there are none.)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.configs import ResourceType
from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code
from headrace.wire.api.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: ListConfigResourcesRequest) -> Answer:
    try:
        require_on_cluster(broker.authorizer, context.session, Operation.DESCRIBE_CONFIGS)
    except BrokerError as error:
        return ListConfigResourcesResponse(error_code=error.code)
    if context.api_version == 0:
        return ListConfigResourcesResponse()
    known = {kind for kind in ResourceType if kind != ResourceType.UNKNOWN}
    wanted = set(message.resource_types) or known
    if not wanted <= known:
        return ListConfigResourcesResponse(error_code=Code.UNSUPPORTED_VERSION)
    found: list[tuple[str, int]] = []
    if ResourceType.TOPIC in wanted:
        found += [(name, ResourceType.TOPIC) for name in sorted(broker.catalog.topics.by_name)]
    if ResourceType.BROKER in wanted:
        found.append((str(broker.node_id), ResourceType.BROKER))
    rows = [ConfigResource(resource_name=name, resource_type=kind) for name, kind in found]
    return ListConfigResourcesResponse(config_resources=rows)
