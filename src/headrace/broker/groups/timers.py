"""Timers by name: setting one again replaces it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from headrace.broker.clock import Clock, Timer


@dataclass(slots=True)
class _Entry:
    due_ms: float
    wakes_ms: float  # never after due_ms
    callback: Callable[..., object]
    arguments: tuple[object, ...]
    timer: Timer | None = None


class Timers:
    """The timers of a shard.

    A session is put off with every heartbeat. That moves `due_ms` only: the clock's timer stays, and when it wakes too
    early it is set again. So a member costs the event loop one timer a session, not one a heartbeat.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[Hashable, _Entry] = {}

    def schedule(self, key: Hashable, delay_ms: float, callback: Callable[..., object], *arguments: object) -> None:
        due_ms = self._clock.monotonic_ms() + delay_ms
        entry = self._entries.get(key)
        if entry is not None and entry.wakes_ms <= due_ms:
            entry.due_ms, entry.callback, entry.arguments = due_ms, callback, arguments
            return
        self.cancel(key)
        entry = self._entries[key] = _Entry(due_ms, due_ms, callback, arguments)
        self._arm(key, entry, delay_ms)

    def cancel(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None and entry.timer is not None:
            entry.timer.cancel()

    def cancel_all(self) -> None:
        for key in list(self._entries):
            self.cancel(key)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def _arm(self, key: Hashable, entry: _Entry, delay_ms: float) -> None:
        entry.wakes_ms = entry.due_ms
        entry.timer = self._clock.call_later(delay_ms, self._wake, key, entry)

    def _wake(self, key: Hashable, entry: _Entry) -> None:
        if self._entries.get(key) is not entry:
            return
        left_ms = entry.due_ms - self._clock.monotonic_ms()
        if left_ms > 0:
            self._arm(key, entry, left_ms)
            return
        del self._entries[key]
        entry.callback(*entry.arguments)
