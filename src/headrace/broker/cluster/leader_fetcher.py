"""Fetching from one leader, for all partitions that it leads.

    rows that changed ─► Fetch, a long poll ─► each partition: truncate | append, high watermark, start offset

Where the logs of leader and follower part is found by the leader: a fetch says which epoch the last record was of, and
the answer where that epoch ended (KIP-595). Nothing is appended, and the high watermark not raised, before the log ends
where both agree.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from headrace.broker.clock import Clock
from headrace.broker.cluster.link import Peer
from headrace.broker.log import Log
from headrace.broker.partition import Partition
from headrace.broker.replica_manager import Key, ReplicaManager
from headrace.broker.tasks import start_loop
from headrace.config import Config
from headrace.config.backoff import exponential_backoff
from headrace.errors import BrokerError, ClosedError, Code, HeadraceError
from headrace.wire.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from headrace.wire.api.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

log = logging.getLogger("headrace.broker.replication")

VERSION = 18
LIST_OFFSETS_VERSION = 7
LATEST, EARLIEST = -1, -2
UNINTERESTED = 0x7FFFFFFFFFFFFFFF
"""The high watermark to say that is known if there is no hurry to hear of others (KIP-1166)."""
RETRY_MS_MIN = 10.0
"""The first wait after a failure; each one is twice as long as the last, up to replica.fetch.backoff.ms."""
FAILURES_A_WARNING = 5
"""A partition that fails so often in a row is worth a warning: it is not just about to hear of something."""


class FetchSettings(NamedTuple):
    """The options of a follower."""

    bytes_min: int
    wait_ms_max: int
    partition_bytes_max: int
    bytes_max: int
    backoff_ms: int
    timeout_ms: int
    is_read_from: bool  # by consumers that are near: they should not have to wait for the high watermark

    @classmethod
    def of(cls, config: Config) -> FetchSettings:
        return cls(
            config.of(int, "replica.fetch.min.bytes"),
            config.of(int, "replica.fetch.wait.max.ms"),
            config.of(int, "replica.fetch.max.bytes"),
            config.of(int, "replica.fetch.response.max.bytes"),
            config.of(int, "replica.fetch.backoff.ms"),
            config.of(int, "replica.socket.timeout.ms"),
            config.optional(str, "replica.selector.class") is not None,
        )


class _Followed:
    """A partition that is followed under one leader and epoch."""

    __slots__ = ("failures", "leader_epoch", "partition", "retry_at_ms")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.failures = 0
        self.retry_at_ms = 0.0


class _Asked(NamedTuple):
    """What was asked for in a fetch."""

    followed: _Followed
    offset: int
    last_epoch: int
    start_offset: int


class LeaderFetcher:
    """Fetches from one leader."""

    def __init__(
        self,
        node_id: int,
        peer: Peer,
        replicas: ReplicaManager,
        broker_epoch: Callable[[], int],
        clock: Clock,
        settings: FetchSettings,
    ) -> None:
        self.followed: dict[Key, _Followed] = {}
        self._node_id = node_id
        self._peer = peer
        self._replicas = replicas
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._settings = settings
        self._changed = asyncio.Event()
        self._is_polling = False
        self._failures = 0
        self._session_id = self._session_epoch = 0
        self._session_broker_epoch = -1
        self._asked: dict[tuple[bytes, int], _Asked] = {}  # what the leader knows that we want
        self._task = start_loop(self._run, "replica fetcher")

    def add(self, partition: Partition) -> None:
        self.followed[partition.key] = _Followed(partition)
        if not self._changed.is_set():
            self._changed.set()
            # A fetch that waits at the leader knows nothing of it. All that come together hang up once.
            asyncio.get_running_loop().call_soon(self._interrupt)

    def remove(self, key: Key) -> None:
        self.followed.pop(key, None)

    def end(self) -> asyncio.Task[None]:
        """Stop; the task that is on its way out."""
        self._task.cancel()
        self._peer.disconnect("nothing is followed there any more")
        return self._task

    def _interrupt(self) -> None:
        if self._is_polling:
            self._peer.disconnect("there is more to follow")

    async def _run(self) -> None:
        while True:
            now_ms = self._clock.monotonic_ms()
            due = [one for one in self.followed.values() if one.retry_at_ms <= now_ms]
            self._changed.clear()
            if not due:
                waits = (one.retry_at_ms - now_ms for one in self.followed.values())
                await self._pause(min(waits, default=self._settings.backoff_ms))
                continue
            try:
                await self._fetch(due)
                self._failures = 0
            except ClosedError:
                return
            except HeadraceError as error:
                if not self._changed.is_set():  # else it was us who hung up
                    self._failures += 1
                    log.log(logging.INFO if self._failures == 1 else logging.DEBUG, "fetching as a replica: %s", error)
                    await self._pause(self._wait_ms(self._failures))

    async def _pause(self, wait_ms: float) -> None:
        """Until something changes, or time is up."""
        timer = self._clock.call_later(wait_ms, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    def _wait_ms(self, failures: int) -> float:
        return exponential_backoff(min(RETRY_MS_MIN, self._settings.backoff_ms), self._settings.backoff_ms, failures)

    # -- one fetch -------------------------------------------------------------------------------

    async def _fetch(self, due: list[_Followed]) -> None:
        settings = self._settings
        broker_epoch = self._broker_epoch()
        if broker_epoch != self._session_broker_epoch:
            self._begin_session(broker_epoch)  # the leader has to hear the new epoch for every partition
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=broker_epoch),
            max_wait_ms=self._longest_wait_ms(len(due)),
            min_bytes=settings.bytes_min,
            max_bytes=settings.bytes_max,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=self._changed_rows(due),
            forgotten_topics_data=self._forgotten(due),
        )
        self._is_polling = True
        try:
            response = await self._peer.ask(request, VERSION, settings.wait_ms_max + settings.timeout_ms)
        except BaseException:
            self._begin_session(broker_epoch)
            raise
        finally:
            self._is_polling = False
        assert isinstance(response, FetchResponse)
        if response.error_code:
            self._begin_session(broker_epoch)
            raise BrokerError("the leader refuses to be fetched from", code=response.error_code)
        self._session_id = response.session_id
        self._session_epoch += 1
        await self._take(response)

    def _begin_session(self, broker_epoch: int) -> None:
        """Name all partitions with the next fetch."""
        self._session_id = self._session_epoch = 0
        self._session_broker_epoch = broker_epoch
        self._asked = {}

    def _changed_rows(self, due: list[_Followed]) -> list[FetchTopic]:
        """What the leader does not know yet of what we want."""
        topics: dict[bytes, list[FetchPartition]] = {}
        asked = self._asked
        for one in due:
            partition, its_log = one.partition, one.partition.log
            place = (partition.topic_id, partition.index)
            wanted = _Asked(one, its_log.end_offset, its_log.latest_epoch, its_log.start_offset)
            if asked.get(place) == wanted:
                continue
            asked[place] = wanted
            row = FetchPartition(
                partition=partition.index,
                current_leader_epoch=one.leader_epoch,
                fetch_offset=wanted.offset,
                last_fetched_epoch=wanted.last_epoch,
                log_start_offset=wanted.start_offset,
                partition_max_bytes=self._settings.partition_bytes_max,
                high_watermark=its_log.high_watermark if self._settings.is_read_from else UNINTERESTED,
            )
            topics.setdefault(partition.topic_id, []).append(row)
        return [FetchTopic(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()]

    def _forgotten(self, due: list[_Followed]) -> list[ForgottenTopic]:
        """What the leader knows of, but is not to answer now."""
        if len(self._asked) == len(due):
            return []
        wanted = {(one.partition.topic_id, one.partition.index) for one in due}
        topics: dict[bytes, list[int]] = {}
        for topic_id, index in [place for place in self._asked if place not in wanted]:
            del self._asked[topic_id, index]
            topics.setdefault(topic_id, []).append(index)
        return [ForgottenTopic(topic_id=topic_id, partitions=indexes) for topic_id, indexes in topics.items()]

    def _longest_wait_ms(self, due: int) -> int:
        """Not beyond the time when a partition that failed is to be tried again."""
        if due == len(self.followed):
            return self._settings.wait_ms_max
        now_ms = self._clock.monotonic_ms()
        waits = [one.retry_at_ms - now_ms for one in self.followed.values() if one.retry_at_ms > now_ms]
        return int(min(self._settings.wait_ms_max, max(min(waits, default=0.0), 1.0)))

    async def _take(self, response: FetchResponse) -> None:
        lost = []
        for topic in response.responses:
            for row in topic.partitions:
                found = self._asked.get((topic.topic_id, row.partition_index))
                if found is None or not self._is_current(found):
                    continue
                try:
                    if self._take_one(found.followed.partition, row):
                        found.followed.failures = 0
                    else:
                        lost.append(found)
                except BrokerError as error:
                    self._put_off(found.followed, error)
        for found in lost:
            if self._is_current(found):
                try:
                    await self._find_way_back(found)
                except BrokerError as error:
                    self._put_off(found.followed, error)

    def _is_current(self, asked: _Asked) -> bool:
        """Whether nothing has happened to the partition since it was asked for."""
        one, partition = asked.followed, asked.followed.partition
        return (
            self.followed.get(partition.key) is one
            and one.leader_epoch == partition.leader_epoch
            and not partition.is_leader
            and partition.log.end_offset == asked.offset
        )

    def _take_one(self, partition: Partition, row: PartitionData) -> bool:
        """Take over what the leader says. False: it has nothing to say about where our log ends."""
        if row.error_code == Code.OFFSET_OUT_OF_RANGE:
            return False
        if row.error_code:
            raise BrokerError(f"{partition.log.name}: the leader says so", code=row.error_code)
        parted = row.diverging_epoch
        if parted.epoch >= 0:
            _truncate(partition.log, common_end(partition.log, parted.epoch, parted.end_offset))
            return True
        records = row.records
        assert records is None or isinstance(records, bytes | bytearray | memoryview)
        self._replicas.take_over(partition, records or b"", row.high_watermark, row.log_start_offset)
        return True

    def _put_off(self, one: _Followed, error: BrokerError) -> None:
        """Try a partition again later. Epochs that do not fit: one of us has yet to hear of the other, mostly."""
        one.failures += 1
        one.retry_at_ms = self._clock.monotonic_ms() + self._wait_ms(one.failures)
        place = (one.partition.topic_id, one.partition.index)
        if (asked := self._asked.get(place)) is not None:
            # To be named again: a leader that had not heard of it has kept nothing that it could look at.
            self._asked[place] = asked._replace(offset=-1)
        log.log(
            logging.DEBUG if one.failures < FAILURES_A_WARNING else logging.WARNING,
            "%s: not replicated: %s",
            one.partition.key,
            error,
        )

    # -- out of range ----------------------------------------------------------------------------

    async def _find_way_back(self, asked: _Asked) -> None:
        """Our log ends where the leader's does not reach, or no longer begins: ask where that is."""
        its_log = asked.followed.partition.log
        latest = await self._leader_offset(asked.followed, LATEST)
        if latest < asked.offset:
            if self._is_current(asked):
                _truncate(its_log, latest)
            return
        earliest = await self._leader_offset(asked.followed, EARLIEST)
        if not self._is_current(asked):
            return
        if earliest <= asked.offset:
            raise BrokerError(f"{its_log.name}: offset {asked.offset} should be there", code=Code.OFFSET_OUT_OF_RANGE)
        log.info("%s: begins again at offset %d, where the leader's log does", its_log.name, earliest)
        its_log.truncate_fully(earliest)

    async def _leader_offset(self, one: _Followed, timestamp: int) -> int:
        partition = one.partition
        row = ListOffsetsPartition(
            partition_index=partition.index, current_leader_epoch=one.leader_epoch, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=self._node_id, topics=[ListOffsetsTopic(name=partition.topic, partitions=[row])]
        )
        response = await self._peer.ask(request, LIST_OFFSETS_VERSION, self._settings.timeout_ms)
        assert isinstance(response, ListOffsetsResponse)
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise BrokerError(f"{partition.log.name}: the leader does not say its offsets", code=answer.error_code)
        return answer.offset


def common_end(of: Log, epoch: int, leader_end: int) -> int:
    """Where a log has to be cut, if `epoch` ended at `leader_end` in the leader's and is the last that both may know.

    If we do not know that epoch, the one before it ends too early rather than too late, and the next fetch tells more.
    """
    known, end = of.end_of_epoch(epoch)
    if known < 0:
        return min(leader_end, of.end_offset)
    return min(end, leader_end) if known == epoch else end


def _truncate(of: Log, offset: int) -> None:
    if offset < of.high_watermark:
        log.error(
            "%s: cut at offset %d, below its high watermark %d: a leader was elected that has less",
            of.name,
            offset,
            of.high_watermark,
        )
    elif offset < of.end_offset:
        log.info(
            "%s: cut at offset %d, it ended at %d: the leader's log went on differently", of.name, offset, of.end_offset
        )
    of.truncate(offset)
