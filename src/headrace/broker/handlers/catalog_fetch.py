"""Key 30000, our own: what has changed in the catalog. A broker that is alone tells it too: who asks may join it.

A broker that is not the controller names the one that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.cluster.access import controller_for
from headrace.broker.cluster.catalog_feed import answer
from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.errors import Code
from headrace.wire.api.catalog_fetch import CatalogFetchRequest, CatalogFetchResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: CatalogFetchRequest) -> Answer:
    if broker.cluster is None or not broker.cluster.is_controller:
        require_on_cluster(broker.authorizer, context.session, Operation.CLUSTER_ACTION)
    if broker.cluster is None:
        return answer(broker.catalog, message)
    if not broker.cluster.is_controller:
        return CatalogFetchResponse(
            error_code=Code.NOT_CONTROLLER,
            error_message=f"broker {broker.node_id} is not the controller",
            controller=broker.cluster.controller_address,
        )
    return controller_for(broker, context).feed.fetch(message)
