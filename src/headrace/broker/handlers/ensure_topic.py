"""Key 30002, our own: make a topic for another broker, whose client has asked for it and may have it made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.cluster.access import controller_for
from headrace.broker.context import Answer, Context
from headrace.wire.api.ensure_topic import EnsureTopicRequest, EnsureTopicResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: EnsureTopicRequest) -> Answer:
    controller_for(broker, context).ensure_topic(message.name)
    recent = broker.catalog.recent
    return EnsureTopicResponse(generation=recent.generation, next_number=recent.next_number)
