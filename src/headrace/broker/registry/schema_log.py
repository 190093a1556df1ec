"""The topic `_schemas`: written and followed through the broker's own logs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.registry import rest_errors
from headrace.broker.registry.changes import TOPIC, Change, decode, encode
from headrace.broker.registry.state import RegistryState
from headrace.errors import BrokerError, Code, WireError
from headrace.wire.layout import Record

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger("headrace.broker.registry")

_TOO_LARGE = (Code.RECORD_LIST_TOO_LARGE, Code.MESSAGE_TOO_LARGE)


class SchemaLog:
    """Appends changes to the topic, and applies what the topic has to the state. Event loop only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._next_offset = 0
        self._topic_id = b""  # of the topic that was loaded
        self.state = RegistryState()

    def start(self) -> None:
        """Create the topic if it is missing, and load it."""
        topics = self._broker.catalog.topics.by_name
        if TOPIC not in topics:
            self._broker.topic_manager.create(TOPIC, 1, 1, {"cleanup.policy": "compact"})
        elif not self._broker.log_config(TOPIC).compact:
            log.warning(
                "topic %s is not compacted: retention may delete schemas; set its cleanup.policy to compact", TOPIC
            )
        if len(topics[TOPIC].partitions) != 1:
            log.warning("topic %s has %d partitions, expected 1: only 0 is used", TOPIC, len(topics[TOPIC].partitions))
        self.follow()
        log.info("loaded %s: %d subjects, largest id %d", TOPIC, len(self.state.subjects()), self.state.largest_id)

    def follow(self) -> None:
        """Apply the changes behind the last known one. Raise RestError if the topic cannot be read."""
        try:
            partition = self._broker.replicas.partition(TOPIC, 0)
            if partition.log.topic_id != self._topic_id or partition.log.end_offset < self._next_offset:
                # The topic was created again, or was truncated.
                self._topic_id, self._next_offset, self.state = partition.log.topic_id, 0, RegistryState()
            if partition.log.end_offset == self._next_offset:
                return
            for batch in partition.log.batches(max(self._next_offset, partition.log.start_offset)):
                if not batch.header.is_control:
                    self._apply([record for record in batch.records() if record.offset >= self._next_offset])
                self._next_offset = batch.header.last_offset + 1
            self._next_offset = partition.log.end_offset
        except (BrokerError, WireError, OSError) as error:
            raise rest_errors.RestError(50001, f"failed to read the topic {TOPIC}: {error}") from error

    def _apply(self, records: Sequence[Record]) -> None:
        for record in records:
            change = decode(record)
            if change is not None:
                self.state.apply(change)

    async def append(self, changes: Sequence[Change]) -> None:
        """Write changes to the topic; return when it has them and the state follows."""
        self.follow()
        now_ms = self._broker.clock.time_ms()
        try:
            await self._broker.internal.append(TOPIC, 0, [encode(change, now_ms) for change in changes])
        except BrokerError as error:
            if error.code in _TOO_LARGE:
                raise rest_errors.too_large(f"the schema is too large for the topic {TOPIC}: {error}") from error
            raise rest_errors.store_failed(error) from error
        except OSError as error:
            raise rest_errors.store_failed(error) from error
        self.follow()
