"""Key 0: write records.

    authorise → split by partition → (is it in the transaction?) → append → wait for replicas and disk → answer

Each partition has an outcome of its own. v0-2 carry message sets, v13 topic ids; from v12 on a transaction takes in
partitions by being written to (KIP-890). With acks=0 there is no answer, and an error closes the connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import INTERNAL
from headrace.broker.context import Answer, Context
from headrace.broker.faults import CloseConnection
from headrace.broker.log import AppendInfo, Origin, Prepared
from headrace.broker.log.decompression import Decompression, OffLoopError
from headrace.broker.partition import Partition
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace.wire.layout import ATTRIBUTES_OFFSET, HEADER_BYTES, MAGIC_OFFSET, TRANSACTIONAL
from headrace.wire.primitives import Buffer
from headrace.wire.schema import Records

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

ACKS = (-1, 0, 1)
BATCHES_SINCE = 3  # v0-2 have message sets
LEADERS_SINCE = 10  # who is told that another broker leads is told which one
ABORTABLE_SINCE = 11  # clients before it do not know TRANSACTION_ABORTABLE
ADDS_PARTITIONS_SINCE = 12
TOPIC_IDS_SINCE = 13

_producer = struct.Struct(">qh")
_PRODUCER_OFFSET = 43
# The producer knows how to wait for a coordinator that is busy, but before v12 only under this name.
_UNVERIFIED = frozenset(
    {
        Code.CONCURRENT_TRANSACTIONS,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
    }
)


class _Part:
    """What is to be written to one partition, and what became of it."""

    __slots__ = ("error", "index", "info", "partition", "prepared", "records")

    def __init__(self, index: int, records: Records) -> None:
        self.index = index
        self.records: Buffer = records if isinstance(records, bytes | bytearray | memoryview) else b""
        self.partition: Partition | None = None  # set: it may be written
        self.prepared: Prepared | None = None  # set: it has been checked
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
    def producer(self) -> tuple[int, int]:
        """Id and epoch in the first batch."""
        producer_id, epoch = _producer.unpack_from(self.records, _PRODUCER_OFFSET)
        return producer_id, epoch


_Split = list[tuple[str, bytes, list[_Part]]]
"""The topics of a request, without the records: name, id, partitions."""


def handle(broker: Broker, context: Context, message: ProduceRequest) -> Answer:
    if message.acks not in ACKS:
        return failure(context, message, Code.INVALID_REQUIRED_ACKS)
    split = _split(broker, context, message)
    transactional: list[_Part] = []
    if context.api_version >= BATCHES_SINCE:
        transactional = [part for _, _, parts in split for part in parts if part.is_transactional]
        if transactional and not _may_write_transactions(broker, context, message.transactional_id):
            return failure(context, message, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    unchecked = _check(broker, context.api_version, split)
    if unchecked:
        return _check_in_thread(broker, context, message, split, transactional, unchecked)
    return _write(broker, context, message, split, transactional)


def _write(
    broker: Broker, context: Context, message: ProduceRequest, split: _Split, transactional: list[_Part]
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """Go on with what has been checked."""
    if transactional:
        known = [part for part in transactional if part.prepared is not None]
        if not all(map(_is_in_transaction, known)) and _wants_verification(broker, context):
            return _verify_first(broker, context, message, split, known)
    _append(broker, message, split)
    waits = _waits(broker, message, split)
    if waits:
        return _answer_later(context, message.acks, split, waits)
    return _answer(context, message.acks, split)


def failure(context: Context, message: ProduceRequest, code: int) -> ProduceResponse:
    """Every partition refused for the same reason."""
    split: _Split = []
    for topic in message.topic_data:
        parts = [_Part(part.partition_index, None) for part in topic.partition_data]
        for part in parts:
            part.error = BrokerError(code=code)
        split.append((topic.name, topic.topic_id, parts))
    answer = _answer(context, message.acks, split)
    assert answer is not None
    return answer


def without_records(message: ProduceRequest) -> ProduceRequest:
    """What is kept of a request while its answer waits for replicas: the records are in the log, and need no memory."""
    return message.replace(
        topic_data=[
            topic.replace(partition_data=[part.replace(records=None) for part in topic.partition_data])
            for topic in message.topic_data
        ]
    )


# -- authorise, split ----------------------------------------------------------------------------


def _split(broker: Broker, context: Context, message: ProduceRequest) -> _Split:
    """The partitions, each with its right to be written or with the reason why it is not."""
    split: _Split = []
    for topic in message.topic_data:
        parts = [_Part(part[0], part[1]) for part in topic.partition_data]
        split.append((topic.name, topic.topic_id, parts))
        try:
            name = _writable(broker, context, topic)
        except BrokerError as error:
            for part in parts:
                part.error = error
            continue
        for part in parts:
            try:
                part.partition = broker.replicas.partition(name, part.index)
            except BrokerError as error:
                part.error = error
    return split


def _writable(broker: Broker, context: Context, topic: TopicProduceData) -> str:
    """The name of a topic that the client may write to."""
    if context.api_version >= TOPIC_IDS_SINCE:
        found = broker.catalog.topics.by_id.get(topic.topic_id)
        if found is None:
            raise BrokerError("there is no topic with this id", code=Code.UNKNOWN_TOPIC_ID)
        name = found.name
    else:
        name = topic.name
    if not broker.authorizer.allows(context.session, Operation.WRITE, Resource.TOPIC, name):
        raise BrokerError(f"no right to write to topic {name}", code=Code.TOPIC_AUTHORIZATION_FAILED)
    if name in INTERNAL:
        raise BrokerError(f"topic {name} is the broker's own", code=Code.INVALID_TOPIC_EXCEPTION)
    return name


def _may_write_transactions(broker: Broker, context: Context, transactional_id: str | None) -> bool:
    return transactional_id is not None and broker.authorizer.allows(
        context.session, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id
    )


# -- transactions --------------------------------------------------------------------------------


def _wants_verification(broker: Broker, context: Context) -> bool:
    return context.api_version >= ADDS_PARTITIONS_SINCE or broker.configurations.current().of(
        bool, "transaction.partition.verification.enable"
    )


def _is_in_transaction(part: _Part) -> bool:
    assert part.partition is not None
    return part.partition.log.in_transaction(*part.producer)


async def _verify_first(
    broker: Broker, context: Context, message: ProduceRequest, split: _Split, transactional: list[_Part]
) -> ProduceResponse | None:
    """Ask the coordinator whether the partitions belong to the transaction, or let them, then go on.

    All of them: while one is waited for, the transaction may end in the others.
    """
    assert message.transactional_id is not None
    adds = context.api_version >= ADDS_PARTITIONS_SINCE
    by_producer: dict[tuple[int, int], list[_Part]] = {}
    for part in transactional:
        by_producer.setdefault(part.producer, []).append(part)
    for (producer_id, epoch), parts in by_producer.items():
        keys = [part.partition.key for part in parts if part.partition]
        codes = await broker.transactions.ensure_partitions(
            message.transactional_id, producer_id, epoch, keys, add=adds
        )
        for part, key in zip(parts, keys, strict=True):
            code = codes.get(key, Code.NONE)
            if code != Code.NONE:
                text = f"the coordinator says of the transaction: {code.name}"
                part.error = BrokerError(text, code=_known_code(code, context.api_version))
    _append(broker, message, split)
    waits, acks = _waits(broker, message, split), message.acks
    del message  # and with it the records, while the answer waits
    return await _answer_later(context, acks, split, waits) if waits else _answer(context, acks, split)


def _known_code(code: Code, version: int) -> Code:
    """What the coordinator said, in words that a client of that version knows."""
    if code == Code.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE:
        return Code.INVALID_TXN_STATE
    if code in _UNVERIFIED and version < ADDS_PARTITIONS_SINCE:
        return Code.NOT_ENOUGH_REPLICAS
    return code


# -- check ---------------------------------------------------------------------------------------


def _check(broker: Broker, version: int, split: _Split) -> list[_Part]:
    """Check batches as far as that is quick; return those that are left for a thread."""
    unchecked: list[_Part] = []
    decompression = broker.loop_decompression
    decompression.begin()
    for _, _, parts in split:
        for part in parts:
            if part.error is not None:
                continue
            try:
                if not unchecked:
                    _prepare(part, version, decompression)
                    continue
            except OffLoopError:
                pass
            unchecked.append(part)
    return unchecked


def _prepare(part: _Part, version: int, decompression: Decompression) -> None:
    """Check a batch; an error is the partition's. From any thread."""
    assert part.partition is not None
    magic = 2 if version >= BATCHES_SINCE else min(version // 2, 1)
    try:
        part.prepared = part.partition.log.prepare(part.records, Origin.CLIENT, magic, decompression)
    except BrokerError as error:
        # Frames of the traceback hold the records, decompressed, and would do so until the collector finds them.
        error.__traceback__ = error.__context__ = None
        part.error = error


async def _check_in_thread(
    broker: Broker,
    context: Context,
    message: ProduceRequest,
    split: _Split,
    transactional: list[_Part],
    unchecked: list[_Part],
) -> ProduceResponse | None:
    """Check the rest of a request where that holds up nobody, and only then ask about its transaction."""
    loop = asyncio.get_running_loop()
    decompression = Decompression(broker.decompression_limits)
    for part in unchecked:
        await loop.run_in_executor(broker.checking_threads, _prepare, part, context.api_version, decompression)
    answer = _write(broker, context, message, split, transactional)
    del message, part  # and with them the records, while the answer waits
    return answer if answer is None or isinstance(answer, ProduceResponse) else await answer


# -- append, wait, answer ------------------------------------------------------------------------


def _append(broker: Broker, message: ProduceRequest, split: _Split) -> None:
    replicas, acks = broker.replicas, message.acks
    for _, _, parts in split:
        for part in parts:
            prepared, part.prepared, part.records = part.prepared, None, b""
            if part.error is not None or part.partition is None:
                continue
            assert prepared is not None
            try:
                part.info = replicas.append(part.partition, prepared, origin=Origin.CLIENT, acks=acks)
            except BrokerError as error:
                part.error = error


def _waits(broker: Broker, message: ProduceRequest, split: _Split) -> list[Awaitable[None]]:
    """What has to happen before the answer; mostly nothing."""
    waits: list[Awaitable[None]] = []
    if message.acks == 0:
        return waits
    for _, _, parts in split:
        for part in parts:
            if part.info is None:
                continue
            assert part.partition is not None
            if message.acks == -1:  # of a duplicate too: the original may not be replicated yet
                replicated = broker.replicas.replicated(part.partition, part.info.last_offset, message.timeout_ms)
                if replicated is not None:
                    waits.append(_noting(part, replicated))
            if part.partition.log.needs_flush:
                waits.append(_noting(part, broker.logs.flushed(part.partition.log)))
    return waits


async def _noting(part: _Part, wait: Awaitable[None]) -> None:
    """Wait; an error is the partition's."""
    try:
        await wait
    except BrokerError as error:
        part.error = error


async def _answer_later(
    context: Context, acks: int, split: _Split, waits: list[Awaitable[None]]
) -> ProduceResponse | None:
    await asyncio.gather(*waits)
    return _answer(context, acks, split)


def _answer(context: Context, acks: int, split: _Split) -> ProduceResponse | None:
    if acks == 0:
        for name, _, parts in split:
            for part in parts:
                if part.error is not None:
                    raise CloseConnection(f"acks=0 produce failed: {name}-{part.index}: {part.error}")
        return None
    return ProduceResponse(
        responses=tuple(
            [
                TopicProduceResponse(
                    name=name,
                    topic_id=topic_id,
                    partition_responses=tuple([_outcome(part, context.api_version) for part in parts]),
                )
                for name, topic_id, parts in split
            ]
        )
    )


def _outcome(part: _Part, version: int) -> PartitionProduceResponse:
    if part.error is None:
        assert part.info is not None
        assert part.partition is not None
        return PartitionProduceResponse(
            partition_index=part.index,
            base_offset=part.info.first_offset,
            log_append_time_ms=part.info.append_time_ms,
            log_start_offset=part.partition.log.start_offset,
        )
    error = part.error
    outcome = PartitionProduceResponse(
        partition_index=part.index,
        error_code=error.code,
        base_offset=-1,
        error_message=error.args[0] or None,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=place, batch_index_error_message=text)
            for place, text in getattr(error, "record_errors", ())
        ],
    )
    if version >= LEADERS_SINCE and error.code == Code.NOT_LEADER_OR_FOLLOWER and part.partition is not None:
        partition = part.partition
        return outcome.replace(
            current_leader=LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
        )
    return outcome
