"""Key 62: a broker joins the cluster. The first one to come makes a cluster of a broker that was alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.cluster.access import controller_for
from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code
from headrace.wire.api.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: BrokerRegistrationRequest) -> Answer:
    require_on_cluster(broker.authorizer, context.session, Operation.CLUSTER_ACTION)
    if message.cluster_id != broker.catalog.identity.cluster_id:
        raise BrokerError("that is another cluster", code=Code.INCONSISTENT_CLUSTER_ID)
    if broker.cluster is None:
        if message.broker_id == broker.node_id:
            raise BrokerError("that is my own number", code=Code.DUPLICATE_BROKER_REGISTRATION)
        broker.found_cluster()
    controller = controller_for(broker, context)
    return BrokerRegistrationResponse(broker_epoch=controller.register(message, context.session))
