"""What happens when nothing happens: transactions whose time is up, and ids that nobody has used for long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from headrace.broker.clock import Clock, Timer
from headrace.broker.transactions import log_records
from headrace.broker.transactions.states import AT_REST, State
from headrace.broker.transactions.store import Entry, StatePartition, TransactionStore
from headrace.config import Config
from headrace.errors import BrokerError

log = logging.getLogger("headrace.broker.transactions")

FORGOTTEN_AT_ONCE_MAX = 1_000
"""Ids whose tombstones go into the log together."""

Start = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Expiry:
    """Two timers that go round and round."""

    def __init__(
        self,
        store: TransactionStore,
        clock: Clock,
        config: Config,
        start_task: Start,
        abort: Callable[[StatePartition, Entry], Coroutine[Any, Any, None]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._config = config
        self._start_task = start_task
        self._abort = abort
        self._timers: dict[str, Timer] = {}

    def start(self) -> None:
        self._again("transaction.abort.timed.out.transaction.cleanup.interval.ms", self.abort_timed_out)
        self._again("transaction.remove.expired.transaction.cleanup.interval.ms", self.forget_unused)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _again(self, interval_option: str, action: Callable[[], None]) -> None:
        def turn() -> None:
            self._again(interval_option, action)
            action()

        interval_ms = self._config.of(int, interval_option)
        self._timers[interval_option] = self._clock.call_later(interval_ms, turn)

    def abort_timed_out(self) -> None:
        """Abort the transactions that have been open for longer than their producers asked for."""
        now_ms = self._clock.time_ms()
        for partition, entry in self._at_leisure():
            current = entry.current
            if current.state == State.ONGOING and current.started_ms + current.timeout_ms < now_ms:
                log.info("%s: open for more than %d ms, aborting", current.transactional_id, current.timeout_ms)
                self._start_task(self._abort(partition, entry))

    def forget_unused(self) -> None:
        """Write tombstones for the ids that have been at rest for too long."""
        oldest_ms = self._clock.time_ms() - self._config.of(int, "transactional.id.expiration.ms")
        unused: dict[int, list[Entry]] = {}
        for partition, entry in self._at_leisure():
            if entry.current.state in AT_REST and entry.current.updated_ms <= oldest_ms:
                entry.pending = State.DEAD
                unused.setdefault(partition.index, []).append(entry)
        for index, entries in unused.items():
            for start in range(0, len(entries), FORGOTTEN_AT_ONCE_MAX):
                some = entries[start : start + FORGOTTEN_AT_ONCE_MAX]
                self._start_task(self._forget(self._store.partitions[index], some))

    async def _forget(self, partition: StatePartition, entries: list[Entry]) -> None:
        names = [entry.current.transactional_id for entry in entries]
        try:
            now_ms = self._clock.time_ms()
            await self._store.append(partition, [log_records.tombstone(name, now_ms) for name in names])
            for name in names:
                del partition.entries[name]
        except BrokerError as error:
            log.warning("%d transactional ids could not be forgotten: %s", len(names), error)
        finally:
            for entry in entries:
                entry.settle()

    def _at_leisure(self) -> Iterator[tuple[StatePartition, Entry]]:
        """All entries that nothing is happening to."""
        for partition in self._store.partitions.values():
            for entry in partition.entries.values():
                if entry.pending is None and not entry.current.is_unborn:
                    yield partition, entry
