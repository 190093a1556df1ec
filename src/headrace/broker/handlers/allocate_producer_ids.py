"""Key 67: a block of producer ids for another broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.cluster.access import controller_for
from headrace.broker.context import Answer, Context
from headrace.wire.api.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: AllocateProducerIdsRequest) -> Answer:
    first, end = controller_for(broker, context).reserve_producer_ids()
    return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=end - first)
