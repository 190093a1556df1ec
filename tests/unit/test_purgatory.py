"""The purgatory: delayed operations, their keys and timeouts."""

from __future__ import annotations

import heapq
import itertools

from headrace.broker.purgatory import Purgatory


class HandClock:
    """A manual clock."""

    def __init__(self):
        self.now = 0.0
        self._due = []
        self._numbers = itertools.count()

    def monotonic_ms(self):
        return self.now

    def time_ms(self):
        return int(self.now)

    def call_later(self, delay_ms, callback, *arguments):
        timer = Timer(callback, arguments)
        heapq.heappush(self._due, (self.now + delay_ms, next(self._numbers), timer))
        return timer

    def turn(self, milliseconds):
        self.now += milliseconds
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2].ring()


class Timer:
    def __init__(self, callback, arguments):
        self._call = lambda: callback(*arguments)

    def cancel(self):
        self._call = lambda: None

    def ring(self):
        self._call()


class Waiting:
    """Complete after a number of wake-ups."""

    def __init__(self, wakes):
        self.wakes = wakes
        self.seen = []
        self.expired = 0

    def try_complete(self, key):
        self.seen.append(key)
        return len(self.seen) >= self.wakes

    def expire(self):
        self.expired += 1


def test_an_operation_is_woken_by_its_keys_until_it_is_complete():
    clock = HandClock()
    purgatory = Purgatory[str](clock)
    operation, other = Waiting(2), Waiting(9)
    purgatory.watch(operation, ["a", "b"], 100)
    purgatory.watch(other, ["b"], 100)
    for key in ("nobody", "a", "b", "a", "b"):
        purgatory.wake(key)
    assert operation.seen == ["a", "b"]
    assert other.seen == ["b", "b"]
    assert len(purgatory) == 1
    clock.turn(100)
    assert (operation.expired, other.expired) == (0, 1)
    assert len(purgatory) == 0


def test_an_operation_expires_once_and_is_removed():
    clock = HandClock()
    purgatory = Purgatory[str](clock)
    operation = Waiting(5)
    purgatory.watch(operation, ["a"], 100)
    clock.turn(99)
    assert operation.expired == 0
    clock.turn(1)
    clock.turn(1000)
    purgatory.wake("a")
    assert (operation.expired, operation.seen) == (1, [])


def test_a_forgotten_operation_is_not_called_again():
    clock = HandClock()
    purgatory = Purgatory[str](clock)
    operation = Waiting(1)
    purgatory.watch(operation, ["a", "b"], 100)
    purgatory.forget(operation)
    purgatory.forget(operation)
    purgatory.wake("a")
    clock.turn(1000)
    assert (operation.seen, operation.expired, len(purgatory)) == ([], 0, 0)


def test_an_operation_may_forget_another_during_a_wake():
    purgatory = Purgatory[str](HandClock())
    second = Waiting(1)

    class First(Waiting):
        def try_complete(self, key):
            purgatory.forget(second)
            return super().try_complete(key)

    first = First(1)
    purgatory.watch(first, ["a"], 100)
    purgatory.watch(second, ["a"], 100)
    purgatory.wake("a")
    assert (first.seen, second.seen) == (["a"], [])
