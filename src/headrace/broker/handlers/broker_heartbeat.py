"""Key 63: a broker lives, or wants to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.cluster.access import controller_for
from headrace.broker.context import Answer, Context
from headrace.wire.api.broker_heartbeat import BrokerHeartbeatRequest

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: BrokerHeartbeatRequest) -> Answer:
    return controller_for(broker, context).heartbeat(message, context.session)
