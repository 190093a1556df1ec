"""The batches that a broker has stored, by fetches."""

from __future__ import annotations

from headrace.wire.layout import BatchHeader
from headrace.wire.records import read_batches
from tests.support.peers.broker import Broker
from tests.support.peers.connection import Connection


def stored_batches(broker: Broker, topic: str, partition: int = 0) -> list[BatchHeader]:
    """Return the headers of all batches of a partition, including markers."""
    headers: list[BatchHeader] = []
    offset, end_offset = 0, 1
    with Connection(broker.bootstrap) as connection:
        while offset < end_offset:
            fetched = connection.fetch(topic, partition=partition, offset=offset)
            end_offset = fetched.high_watermark
            assert isinstance(fetched.records, bytes | memoryview)
            for batch in read_batches(fetched.records, partial=True):
                batch.verify()
                headers.append(batch.header)
            offset = headers[-1].last_offset + 1 if headers else end_offset
    return headers
