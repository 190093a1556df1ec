"""Key 64: forget a broker that will not come back. One that does registers again, and is in sync with nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code
from headrace.wire.api.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: UnregisterBrokerRequest) -> Answer:
    try:
        require_on_cluster(broker.authorizer, context.session, Operation.ALTER)
        _unregister(broker, message.broker_id)
    except BrokerError as error:
        return UnregisterBrokerResponse(error_code=error.code, error_message=str(error.args[0]))
    return UnregisterBrokerResponse(error_message=None)


def _unregister(broker: Broker, node_id: int) -> None:
    if node_id == broker.node_id:
        raise BrokerError(f"broker {node_id} runs, and is the controller", code=Code.INVALID_REQUEST)
    if broker.cluster is None:
        raise BrokerError(f"there is no broker {node_id}: this one is alone", code=Code.BROKER_ID_NOT_REGISTERED)
    from headrace.broker.cluster.controller import Controller

    assert isinstance(broker.cluster, Controller), "others hand this on"
    broker.cluster.unregister(node_id)
