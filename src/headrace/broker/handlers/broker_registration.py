"""Key 62: a broker joins the cluster. The first one to come makes a cluster of a broker that was alone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.broker.cluster.access import controller_for
from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code, ConfigError
from headrace.wire.api.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger("headrace.broker")


def handle(broker: Broker, context: Context, message: BrokerRegistrationRequest) -> Answer:
    require_on_cluster(broker.authorizer, context.session, Operation.CLUSTER_ACTION)
    if message.cluster_id != broker.catalog.identity.cluster_id:
        raise BrokerError("that is another cluster", code=Code.INCONSISTENT_CLUSTER_ID)
    if broker.cluster is None:
        if message.broker_id == broker.node_id:
            raise BrokerError("that is my own number", code=Code.DUPLICATE_BROKER_REGISTRATION)
        _found_cluster(broker, message.broker_id)
    controller = controller_for(broker, context)
    return BrokerRegistrationResponse(broker_epoch=controller.register(message, context.session))


def _found_cluster(broker: Broker, node_id: int) -> None:
    try:
        broker.found_cluster()
    except ConfigError as error:  # what a broker that is alone did not need
        log.error("broker %d cannot join: %s", node_id, error)
        raise BrokerError(str(error), code=Code.INVALID_REGISTRATION) from error
