"""The common produce request, without message objects: one uncompressed batch for one partition, no transaction.

    kernel.scan_produce: parse and check ─► authorize ─► append ─► kernel.encode_produced

Everything else, and every error, is left to `handle_produce`: this path returns None before anything is written, and
the request is handled from the beginning. So both have the same results; this one takes half of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import INTERNAL
from headrace.broker.context import Session
from headrace.broker.log import LogConfig, Origin, Prepared
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError
from headrace.wire.frames import RequestHeader
from headrace.wire.kernel import kernel
from headrace.wire.layout import MAGIC_OFFSET, NO_TIMESTAMP, BatchHeader
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.partition import Partition

_ACKS = (-1, 1)
_NO_CODEC = (None, 0)


def append_single_batch(
    broker: Broker, session: Session, request: RequestHeader, frame: Buffer, position: int
) -> bytes | None:
    """Append the only batch of a produce request, whose body begins at `position`, and return the response frame.

    None: nothing was written, and `handle_produce` has to handle the request.
    """
    batch = kernel.scan_produce(frame, position, request.api_version)
    if batch is None or batch.acks not in _ACKS:
        return None
    name = batch.topic
    if isinstance(name, bytes):
        topic = broker.catalog.topics.by_id.get(name)
        if topic is None:
            return None
        name = topic.name
    if name in INTERNAL or not broker.authorizer.allows(session, Operation.WRITE, Resource.TOPIC, name):
        return None
    partition = broker.replicas.get(name, batch.partition)
    if partition is None or _waits(partition, batch.acks):
        return None
    log = partition.log
    header, keyless, size = batch.header, batch.keyless, batch.stop - batch.start
    if not _is_acceptable(header, keyless, size, log.config, log.env.clock.time_ms()):
        return None
    prepared = Prepared(header, [memoryview(frame)[batch.start + MAGIC_OFFSET : batch.stop]], size, NO_TIMESTAMP)
    try:
        info = broker.replicas.append(partition, prepared, origin=Origin.CLIENT, acks=batch.acks)
    except BrokerError:
        return None
    return kernel.encode_produced(
        request.api_version, request.correlation_id, batch.topic, batch.partition, info.first_offset, log.start_offset
    )


def _waits(partition: Partition, acks: int) -> bool:
    """Return whether the response may have to wait for other replicas or for the disk."""
    config = partition.log.config
    return (acks == -1 and bool(partition.followers)) or config.is_flushed_early


def _is_acceptable(header: BatchHeader, keyless: int, size: int, config: LogConfig, now_ms: int) -> bool:
    """Return whether a valid batch may be written to the topic as it is."""
    if size > config.max_message_bytes or config.log_append_time or config.codec not in _NO_CODEC:
        return False
    if keyless >= 0 and config.compact:
        return False
    newest = header.max_timestamp
    if newest == NO_TIMESTAMP:
        return True
    oldest = newest if header.base_timestamp == NO_TIMESTAMP else min(newest, header.base_timestamp)
    return (
        newest - now_ms <= config.message_timestamp_after_max_ms
        and now_ms - oldest <= config.message_timestamp_before_max_ms
    )
