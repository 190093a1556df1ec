"""The records of a partition that a reader sees, with one fetch that does not wait."""

from __future__ import annotations

from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.records import read_batches
from tests.support.peers.connection import Connection

BYTES_MAX = 16 * 1024 * 1024
VERSION = 12


def visible(connection: Connection, topic: str, partition: int = 0, *, committed: bool = True) -> list[bytes | None]:
    """Return the values of all records; with `committed`, of those that a read_committed reader sees."""
    fetch_partition = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=BYTES_MAX)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=BYTES_MAX,
        isolation_level=int(committed),
        topics=[FetchTopic(topic=topic, partitions=[fetch_partition])],
    )
    response = connection.call(request, VERSION)
    ((data,),) = (topic_data.partitions for topic_data in response.responses)
    assert (response.error_code, data.error_code) == (0, 0)
    values: list[bytes | None] = []
    aborted = sorted((row.first_offset, row.producer_id) for row in data.aborted_transactions or ())
    inside: set[int] = set()  # producers with an aborted transaction at this offset
    for batch in read_batches(b"".join(bytes(part) for part in _parts(data.records)), partial=True):
        while aborted and aborted[0][0] <= batch.header.base_offset:
            inside.add(aborted.pop(0)[1])
        if batch.header.is_control:
            inside.discard(batch.header.producer_id)
        elif not (batch.header.is_transactional and batch.header.producer_id in inside):
            values += [record.value for record in batch.records()]
    return values


def _parts(records: object) -> list[bytes]:
    if records is None:
        return []
    return [bytes(part) for part in records] if isinstance(records, list | tuple) else [bytes(records)]  # type: ignore[call-overload]
