"""A partition in a share group, on the leader of the partition.

    load         read its state from the share coordinator
    acquire      records of a fetch, each with a lock for the member
    acknowledge  accept, release, reject or renew; the response waits until the state is persisted
    release      everything that a member has acquired, when its session ends

Locks that end release their records. What is acquired is in memory only: the next leader delivers it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from headrace.broker.clock import Timer, TimerClock
from headrace.broker.group_options import DeliverySettings
from headrace.broker.share.in_flight import (
    AFTER,
    AcknowledgeType,
    AcquireLimits,
    InFlightRecords,
    OffsetRange,
    RecordState,
    Run,
    Transition,
)
from headrace.broker.share.state import SharePartitionKey, ShareState, StateUpdate
from headrace.broker.tasks import start_task
from headrace.errors import BrokerError, Code

log = logging.getLogger("headrace.broker.share")

LOCK_TIMER_MS_MIN = 5.0
"""Locks that end within this time are released together."""

_FENCED = (
    Code.FENCED_LEADER_EPOCH,
    Code.FENCED_STATE_EPOCH,
    Code.GROUP_ID_NOT_FOUND,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.INVALID_REQUEST,
)
"""Errors of the share coordinator after which this share partition must not be used any more."""


COUNTERS = ("acquired", "accepted", "released", "rejected", "renewed", "expired")
_COUNTED = {
    AcknowledgeType.ACCEPT: "accepted",
    AcknowledgeType.RELEASE: "released",
    AcknowledgeType.REJECT: "rejected",
    AcknowledgeType.RENEW: "renewed",
}


class StateStore(Protocol):
    """The part of ShareStateStore that is used here."""

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState: ...

    async def write(self, key: SharePartitionKey, update: StateUpdate) -> None: ...


class Acknowledgement(NamedTuple):
    """A range of records that a member acknowledges: one type for all, or one for each."""

    offsets: OffsetRange
    types: Sequence[int]


class SharePartitionEnv(NamedTuple):
    """What a share partition needs from the broker."""

    clock: TimerClock
    store: StateStore
    settings: Callable[[], DeliverySettings]
    changed: Callable[[], None]  # records may be available: waiting fetches try again
    fenced: Callable[[], None]  # the share partition must be loaded again, here or elsewhere
    counters: Counter[str]  # of the group: records by COUNTERS


class SharePartition:
    """The in-flight records of a share partition, their locks and their persistence. Event loop only."""

    def __init__(self, key: SharePartitionKey, leader_epoch: int, env: SharePartitionEnv) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self._env = env
        self._state_epoch = 0
        self._records: InFlightRecords | None = None  # None: not loaded
        self._timer: Timer | None = None
        self._timer_due_ms = 0.0
        self.is_fenced = False

    # -- load ------------------------------------------------------------------------------------

    @property
    def is_loaded(self) -> bool:
        return self._records is not None

    @property
    def records(self) -> InFlightRecords:
        """The in-flight records, once it is loaded."""
        assert self._records is not None
        return self._records

    async def load(self, reset_offset: Callable[[str], int]) -> None:
        """Read the persisted state. `reset_offset` returns the start offset for a policy, if there is none yet."""
        state = await self._env.store.read(self.key, self.leader_epoch)
        start_offset = state.start_offset
        if start_offset < 0:
            start_offset = reset_offset(self._env.settings().offset_reset)
        self._state_epoch = state.state_epoch
        self._records = InFlightRecords(start_offset, state.batches)
        log.debug("loaded share partition %s: start offset %d", self.key.coordinator_key, start_offset)

    def fence(self) -> None:
        """Stop using this share partition: another broker leads it, or its state was reset."""
        self.is_fenced = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- acquire ---------------------------------------------------------------------------------

    @property
    def can_acquire(self) -> bool:
        """Whether a fetch may acquire records: there is room for more in flight, or some are available again."""
        return self.is_loaded and not self.is_fenced and self.records.can_acquire(self._env.settings().locks_max)

    def acquire(
        self, member_id: str, fetch_offset: int, batches: Sequence[OffsetRange], limits: AcquireLimits
    ) -> list[Run]:
        """Acquire records of fetched batches for a member."""
        lock_ms = self._env.settings().lock_ms
        lock_ends_ms = self._env.clock.monotonic_ms() + lock_ms
        runs = self.records.acquire(fetch_offset, batches, limits, member_id, lock_ends_ms)
        if runs:
            self._arm(lock_ends_ms)
            self._env.counters["acquired"] += sum(run.count for run in runs)
        return runs

    # -- acknowledge -----------------------------------------------------------------------------

    async def acknowledge(self, member_id: str, acknowledgements: Iterable[Acknowledgement]) -> None:
        """Apply acknowledgements of a member, all or none; return when they are persisted."""
        self._check_usable()
        settings = self._env.settings()
        transitions: list[tuple[Run, RecordState]] = []
        renewed: list[Run] = []
        counted = Counter[str]()
        for acknowledgement in acknowledgements:
            for offsets, kind in _by_type(acknowledgement):
                runs = self.records.acknowledged_runs(member_id, offsets)
                if kind in _COUNTED:
                    counted[_COUNTED[kind]] += sum(run.count for run in runs)
                if kind is not AcknowledgeType.RENEW:
                    transitions += ((run, AFTER[kind]) for run in runs)
                elif settings.may_renew:
                    renewed += runs
                else:
                    raise BrokerError(
                        "Renewing acquisition locks is not enabled for the group.", code=Code.INVALID_RECORD_STATE
                    )
        lock_ends_ms = self._env.clock.monotonic_ms() + settings.lock_ms
        for run in renewed:
            run.lock_ends_ms = lock_ends_ms
        if renewed:
            self._arm(lock_ends_ms)
        transition = Transition()
        for run, state in transitions:
            self.records.begin(transition, [run], state, settings.delivery_count_max)
        if transitions:
            await asyncio.shield(_start(self._persist(transition)))
        self._env.counters.update(counted)

    async def release(self, member_id: str) -> None:
        """Make everything available that a member has acquired."""
        if self.is_loaded and not self.is_fenced:
            await self._release(self.records.acquired_by(member_id))

    async def _release(self, runs: Sequence[Run]) -> None:
        if runs:
            transition = Transition()
            limit = self._env.settings().delivery_count_max
            self.records.begin(transition, runs, RecordState.AVAILABLE, limit)
            await asyncio.shield(_start(self._persist(transition)))

    async def _persist(self, transition: Transition) -> None:
        """Write a transition, then complete it; or cancel it if it cannot be written."""
        try:
            await self._env.store.write(self.key, self.records.update(self._state_epoch, self.leader_epoch, transition))
        except BrokerError as error:
            self.records.cancel(transition)
            if error.code in _FENCED:
                self.fence()
                self._env.fenced()
                raise BrokerError(str(error.args[0]), code=Code.NOT_LEADER_OR_FOLLOWER) from error
            self._rearm()
            raise
        self.records.complete(transition)
        self._rearm()
        self._env.changed()

    def _check_usable(self) -> None:
        if self.is_fenced or not self.is_loaded:
            raise BrokerError(
                f"share partition {self.key.coordinator_key} is not led by this broker any more",
                code=Code.NOT_LEADER_OR_FOLLOWER,
            )

    # -- locks -----------------------------------------------------------------------------------

    def _arm(self, due_ms: float) -> None:
        """Start the timer, unless it ends before that anyway."""
        if self._timer is not None and self._timer_due_ms <= due_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(due_ms - self._env.clock.monotonic_ms(), LOCK_TIMER_MS_MIN)
        self._timer, self._timer_due_ms = self._env.clock.call_later(delay_ms, self._on_timer), due_ms

    def _rearm(self) -> None:
        due_ms = None if self.is_fenced else self.records.next_lock_end_ms()
        if due_ms is not None:
            self._arm(due_ms)

    def _on_timer(self) -> None:
        self._timer = None
        _start(self._release_due())

    async def _release_due(self) -> None:
        if self.is_fenced or not self.is_loaded:
            return
        # Selected here, and not by the timer: meanwhile, an acknowledgement may have come.
        runs = self.records.locks_due(self._env.clock.monotonic_ms() + LOCK_TIMER_MS_MIN)
        if not runs:
            self._rearm()
            return
        log.debug("%s: the locks of %d runs have ended", self.key.coordinator_key, len(runs))
        count = sum(run.count for run in runs)
        try:
            await self._release(runs)
        except BrokerError as error:
            log.warning("%s: failed to release locks, will retry: %s", self.key.coordinator_key, error)
        else:
            self._env.counters["expired"] += count


def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return start_task(work, "share partition", outcomes=(BrokerError,))


def _by_type(acknowledgement: Acknowledgement) -> Iterable[tuple[OffsetRange, AcknowledgeType]]:
    """Yield the ranges of an acknowledgement with the same type."""
    first, last = acknowledgement.offsets
    types = acknowledgement.types
    if len(types) == 1:
        yield acknowledgement.offsets, AcknowledgeType(types[0])
        return
    begin = first
    for offset in range(first, last + 1):
        if offset == last or types[offset - first + 1] != types[begin - first]:
            yield OffsetRange(begin, offset), AcknowledgeType(types[begin - first])
            begin = offset + 1
