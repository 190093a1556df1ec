"""What the handlers of requests between brokers have in common: who may ask, and who answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.cluster.controller import Controller
from headrace.broker.context import Context
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def controller_for(broker: Broker, context: Context) -> Controller:
    """The controller that this broker is, for a peer that has the right of a broker. Raises if one of it is not so."""
    broker.authorizer.require_on_cluster(context.session, Operation.CLUSTER_ACTION)
    if not isinstance(broker.cluster, Controller):
        raise BrokerError(f"broker {broker.node_id} is not the controller", code=Code.NOT_CONTROLLER)
    return broker.cluster
