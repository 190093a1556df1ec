"""What a reader sees of a partition, by one fetch that waits for nothing."""

from __future__ import annotations

from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace.wire.records import read_batches
from tests.support.peers.connection import Connection

BYTES_MAX = 16 * 1024 * 1024
VERSION = 12


def visible(connection: Connection, topic: str, partition: int = 0, *, committed: bool = True) -> list[bytes | None]:
    """The values of all records; with `committed`, of those that a reader of committed records is given."""
    wanted = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=BYTES_MAX)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=BYTES_MAX,
        isolation_level=int(committed),
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    response = connection.call(request, VERSION)
    assert isinstance(response, FetchResponse)
    ((answer,),) = (answers.partitions for answers in response.responses)
    assert (response.error_code, answer.error_code) == (0, 0)
    values: list[bytes | None] = []
    aborted = sorted((row.first_offset, row.producer_id) for row in answer.aborted_transactions or ())
    inside: set[int] = set()  # producers whose aborted transaction we are in
    for batch in read_batches(b"".join(bytes(part) for part in _parts(answer.records)), partial=True):
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
