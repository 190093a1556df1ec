"""Produce: append record batches.

    authorize → find partitions → validate → verify the transaction → append → wait for replicas and disk → respond

Each partition succeeds or fails independently. v0-2 carry message sets · v12+ writing adds a partition to the
transaction (KIP-890) · v13+ topic ids. With acks=0 there is no response, and an error closes the connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import INTERNAL
from headrace.broker.context import Context, HandlerResult
from headrace.broker.faults import CloseConnection
from headrace.broker.log import AppendInfo, Origin, Prepared
from headrace.broker.log.decompression import Decompression, OffLoopError
from headrace.broker.partition import Partition
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.types import ProducerIdAndEpoch
from headrace.wire.api.leaders import LeaderIdAndEpoch
from headrace.wire.api.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace.wire.fields import Records
from headrace.wire.layout import ATTRIBUTES_OFFSET, HEADER_BYTES, MAGIC_OFFSET, TRANSACTIONAL
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

ACKS = (-1, 0, 1)
RECORD_BATCHES_MIN_VERSION = 3  # v0-2 carry message sets
CURRENT_LEADER_MIN_VERSION = 10  # NOT_LEADER_OR_FOLLOWER comes with the current leader
TRANSACTION_ABORTABLE_MIN_VERSION = 11  # older clients do not know TRANSACTION_ABORTABLE
TRANSACTIONS_V2_MIN_VERSION = 12
TOPIC_IDS_MIN_VERSION = 13

_BUFFERS = (bytes, bytearray, memoryview)
_producer = struct.Struct(">qh")
_PRODUCER_OFFSET = 43
# Retriable for the producer, but not in Produce responses before v12.
_COORDINATOR_ERRORS = frozenset(
    {
        Code.CONCURRENT_TRANSACTIONS,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
    }
)


class _PartitionWrite:
    """The records for one partition, and the result of writing them."""

    __slots__ = ("error", "index", "info", "partition", "prepared", "records")

    def __init__(self, index: int, records: Records) -> None:
        self.index = index
        self.records: Buffer = records if isinstance(records, _BUFFERS) else b""
        self.partition: Partition | None = None  # None: not authorized or unknown
        self.prepared: Prepared | None = None  # None: not validated yet
        self.info: AppendInfo | None = None
        self.error: BrokerError | None = None

    @property
    def is_transactional(self) -> bool:
        records = self.records
        return (
            len(records) >= HEADER_BYTES
            and records[MAGIC_OFFSET] == 2
            and bool(records[ATTRIBUTES_OFFSET + 1] & TRANSACTIONAL)
        )

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """The producer of the first batch."""
        return ProducerIdAndEpoch(*_producer.unpack_from(self.records, _PRODUCER_OFFSET))


_Topics = list[tuple[str, bytes, list[_PartitionWrite]]]
"""The writes of a request by topic: name, topic id, partitions. Plain tuples, for speed."""


def handle_produce(broker: Broker, context: Context, request: ProduceRequest) -> HandlerResult:
    if request.acks not in ACKS:
        return fail_produce(context, request, Code.INVALID_REQUIRED_ACKS)
    topics = _find_partitions(broker, context, request)
    transactional: list[_PartitionWrite] = []
    if context.api_version >= RECORD_BATCHES_MIN_VERSION:
        for _, _, writes in topics:
            transactional += [write for write in writes if write.is_transactional]
        if transactional and not _may_use_transactional_id(broker, context, request.transactional_id):
            return fail_produce(context, request, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    unvalidated = _validate(broker, context.api_version, topics)
    if unvalidated:
        return _validate_in_thread(
            broker, context, request, topics, transactional=transactional, unvalidated=unvalidated
        )
    return _append_or_verify(broker, context, request, topics, transactional)


def _append_or_verify(
    broker: Broker, context: Context, request: ProduceRequest, topics: _Topics, transactional: list[_PartitionWrite]
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """Append the validated records, after verifying the transaction where needed."""
    if transactional:
        valid = [write for write in transactional if write.prepared is not None]
        if not all(map(_is_in_transaction, valid)) and _needs_verification(broker, context):
            return _verify_then_append(broker, context, request, topics, valid)
    _append(broker, request, topics)
    waits = _pending_waits(broker, request, topics)
    if waits:
        return _await_then_respond(context, request.acks, topics, waits)
    return _response(context, request.acks, topics)


def fail_produce(context: Context, request: ProduceRequest, code: int) -> ProduceResponse:
    """Return a response in which every partition failed with the same code."""
    topics: _Topics = []
    for topic in request.topic_data:
        writes = [_PartitionWrite(data.partition_index, None) for data in topic.partition_data]
        for write in writes:
            write.error = BrokerError(code=code)
        topics.append((topic.name, topic.topic_id, writes))
    response = _response(context, request.acks, topics)
    assert response is not None
    return response


def without_records(request: ProduceRequest) -> ProduceRequest:
    """Return the request without its records, which need no memory while the response waits for replicas."""
    return request.replace(
        topic_data=[
            topic.replace(partition_data=[data.replace(records=None) for data in topic.partition_data])
            for topic in request.topic_data
        ]
    )


# -- authorize, find partitions ------------------------------------------------------------------


def _find_partitions(broker: Broker, context: Context, request: ProduceRequest) -> _Topics:
    """Return the writes of a request, each with its partition or the error that prevents it."""
    topics: _Topics = []
    for topic in request.topic_data:
        writes = [_PartitionWrite(data[0], data[1]) for data in topic.partition_data]
        topics.append((topic.name, topic.topic_id, writes))
        try:
            name = _writable(broker, context, topic)
        except BrokerError as error:
            for write in writes:
                write.error = error
            continue
        for write in writes:
            try:
                write.partition = broker.replicas.partition(name, write.index)
            except BrokerError as error:
                write.error = error
    return topics


def _writable(broker: Broker, context: Context, topic: TopicProduceData) -> str:
    """Return the name of a topic that the client is authorized to write to."""
    if context.api_version >= TOPIC_IDS_MIN_VERSION:
        known = broker.catalog.topics.by_id.get(topic.topic_id)
        if known is None:
            raise BrokerError(f"unknown topic id {topic.topic_id.hex()}", code=Code.UNKNOWN_TOPIC_ID)
        name = known.name
    else:
        name = topic.name
    broker.authorizer.require(context.session, Operation.WRITE, Resource.TOPIC, name)
    if name in INTERNAL:
        raise BrokerError(
            f"topic {name} is internal and cannot be written by clients", code=Code.INVALID_TOPIC_EXCEPTION
        )
    return name


def _may_use_transactional_id(broker: Broker, context: Context, transactional_id: str | None) -> bool:
    return transactional_id is not None and broker.authorizer.allows(
        context.session, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id
    )


# -- transactions --------------------------------------------------------------------------------


def _needs_verification(broker: Broker, context: Context) -> bool:
    return context.api_version >= TRANSACTIONS_V2_MIN_VERSION or broker.configurations.current().of(
        bool, "transaction.partition.verification.enable"
    )


def _is_in_transaction(write: _PartitionWrite) -> bool:
    assert write.partition is not None
    return write.partition.log.producers.is_open(*write.producer)


async def _verify_then_append(
    broker: Broker, context: Context, request: ProduceRequest, topics: _Topics, transactional: list[_PartitionWrite]
) -> ProduceResponse | None:
    """Have the coordinator verify that the partitions are in the transaction, or add them (v12+); then append.

    All partitions are verified: the transaction may end in the others while one is waited for.
    """
    assert request.transactional_id is not None
    add = context.api_version >= TRANSACTIONS_V2_MIN_VERSION
    by_producer: dict[ProducerIdAndEpoch, list[_PartitionWrite]] = {}
    for write in transactional:
        by_producer.setdefault(write.producer, []).append(write)
    for producer, writes in by_producer.items():
        partitions = [write.partition.key for write in writes if write.partition]
        codes = await broker.transactions.ensure_partitions(request.transactional_id, producer, partitions, add=add)
        for write, partition in zip(writes, partitions, strict=True):
            code = codes.get(partition, Code.NONE)
            if code != Code.NONE:
                message = f"transaction verification failed: {code.name}"
                write.error = BrokerError(message, code=_client_code(code, context.api_version))
    _append(broker, request, topics)
    waits, acks = _pending_waits(broker, request, topics), request.acks
    del request  # frees the records while the response waits
    return await _await_then_respond(context, acks, topics, waits) if waits else _response(context, acks, topics)


def _client_code(code: Code, version: int) -> Code:
    """Return the coordinator's code as a client of that version understands it."""
    if code == Code.TRANSACTION_ABORTABLE and version < TRANSACTION_ABORTABLE_MIN_VERSION:
        return Code.INVALID_TXN_STATE
    if code in _COORDINATOR_ERRORS and version < TRANSACTIONS_V2_MIN_VERSION:
        return Code.NOT_ENOUGH_REPLICAS
    return code


# -- validate ------------------------------------------------------------------------------------


def _validate(broker: Broker, version: int, topics: _Topics) -> list[_PartitionWrite]:
    """Validate batches that are cheap to check; return those that are left for a thread."""
    unvalidated: list[_PartitionWrite] = []
    decompression = broker.loop_decompression
    decompression.begin()
    for _, _, writes in topics:
        for write in writes:
            if write.error is not None:
                continue
            try:
                if not unvalidated:
                    _prepare(write, version, decompression)
                    continue
            except OffLoopError:
                pass
            unvalidated.append(write)
    return unvalidated


def _prepare(write: _PartitionWrite, version: int, decompression: Decompression) -> None:
    """Validate a batch and record the error. Runs on any thread."""
    assert write.partition is not None
    magic = 2 if version >= RECORD_BATCHES_MIN_VERSION else min(version // 2, 1)
    try:
        write.prepared = write.partition.log.prepare(write.records, Origin.CLIENT, magic, decompression)
    except BrokerError as error:
        # The frames of the traceback would keep the decompressed records alive until the next garbage collection.
        error.__traceback__ = error.__context__ = None
        write.error = error


async def _validate_in_thread(
    broker: Broker,
    context: Context,
    request: ProduceRequest,
    topics: _Topics,
    *,
    transactional: list[_PartitionWrite],
    unvalidated: list[_PartitionWrite],
) -> ProduceResponse | None:
    """Validate the rest of a request off the event loop, then append."""
    loop = asyncio.get_running_loop()
    decompression = Decompression(broker.decompression_limits)
    for write in unvalidated:
        await loop.run_in_executor(broker.checking_threads, _prepare, write, context.api_version, decompression)
    response = _append_or_verify(broker, context, request, topics, transactional)
    del request, write  # frees the records while the response waits
    return response if response is None or isinstance(response, ProduceResponse) else await response


# -- append, wait, respond -----------------------------------------------------------------------


def _append(broker: Broker, request: ProduceRequest, topics: _Topics) -> None:
    replicas, acks = broker.replicas, request.acks
    for _, _, writes in topics:
        for write in writes:
            prepared, write.prepared, write.records = write.prepared, None, b""
            if write.error is not None or write.partition is None:
                continue
            assert prepared is not None
            try:
                write.info = replicas.append(write.partition, prepared, origin=Origin.CLIENT, acks=acks)
            except BrokerError as error:
                write.error = error


def _pending_waits(broker: Broker, request: ProduceRequest, topics: _Topics) -> list[Awaitable[None]]:
    """Return what the response has to wait for: replication and flushes, usually nothing."""
    waits: list[Awaitable[None]] = []
    if request.acks == 0:
        return waits
    for _, _, writes in topics:
        for write in writes:
            if write.info is None:
                continue
            assert write.partition is not None
            if request.acks == -1:  # also for duplicates: the original may not be replicated yet
                replicated = broker.replicas.replicated(write.partition, write.info.last_offset, request.timeout_ms)
                if replicated is not None:
                    waits.append(_await_recording_error(write, replicated))
            if write.partition.log.needs_flush:
                waits.append(_await_recording_error(write, broker.logs.flushed(write.partition.log)))
    return waits


async def _await_recording_error(write: _PartitionWrite, wait: Awaitable[None]) -> None:
    """Wait and record the error."""
    try:
        await wait
    except BrokerError as error:
        write.error = error


async def _await_then_respond(
    context: Context, acks: int, topics: _Topics, waits: list[Awaitable[None]]
) -> ProduceResponse | None:
    await asyncio.gather(*waits)
    return _response(context, acks, topics)


def _response(context: Context, acks: int, topics: _Topics) -> ProduceResponse | None:
    if acks == 0:
        for name, _, writes in topics:
            for write in writes:
                if write.error is not None:
                    raise CloseConnection(f"acks=0 produce to {name}-{write.index} failed: {write.error}")
        return None
    responses = []
    for name, topic_id, writes in topics:
        partitions = [_partition_response(write, context.api_version) for write in writes]
        responses.append(TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=partitions))
    return ProduceResponse(responses=responses)


def _partition_response(write: _PartitionWrite, version: int) -> PartitionProduceResponse:
    if write.error is None:
        assert write.info is not None
        assert write.partition is not None
        return PartitionProduceResponse(
            partition_index=write.index,
            base_offset=write.info.first_offset,
            log_append_time_ms=write.info.append_time_ms,
            log_start_offset=write.partition.log.start_offset,
        )
    error = write.error
    response = PartitionProduceResponse(
        partition_index=write.index,
        error_code=error.code,
        base_offset=-1,
        error_message=error.args[0] or None,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
            for index, message in getattr(error, "record_errors", ())
        ],
    )
    if (
        version >= CURRENT_LEADER_MIN_VERSION
        and error.code == Code.NOT_LEADER_OR_FOLLOWER
        and write.partition is not None
    ):
        partition = write.partition
        return response.replace(
            current_leader=LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
        )
    return response
