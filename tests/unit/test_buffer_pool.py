"""The producer's memory: reuse, order of those who wait, time-outs, the end."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from headrace.client.concurrency import OneShotEvent
from headrace.errors import BufferExhaustedError, ClosedError, IllegalStateError, RecordTooLargeError, TimedOutError
from headrace.producer.buffer_pool import OVERTAKES_MAX, BufferPool, Claim, Waiter
from tests.support.fake_network import FakeClock
from tests.support.waiting import eventually

BATCH, TOTAL = 1024, 4096
LONG_MS = 20_000
SECONDS_MAX = 20


def make_pool(**options: Any) -> BufferPool:
    return BufferPool(TOTAL, BATCH, FakeClock(), **options)


class AllocatingThread:
    """A thread that wants memory, and what came of it."""

    def __init__(self, pool: BufferPool, size: int, done: list[Any], name: Any, timeout_ms: float = LONG_MS) -> None:
        self.pool, self.size, self.done, self.name, self.timeout_ms = pool, size, done, name, timeout_ms
        self.error: Exception | None = None
        before = pool.waiting_threads
        self.thread = threading.Thread(target=self._allocate, daemon=True)
        self.thread.start()
        eventually("a waiting thread", lambda: pool.waiting_threads > before)

    def _allocate(self) -> None:
        try:
            self.pool.allocate(self.size, self.timeout_ms)
            self.done.append(self.name)
        except Exception as error:
            self.error = error

    def join(self) -> None:
        self.thread.join(SECONDS_MAX)
        assert not self.thread.is_alive()


@pytest.mark.behaviour("P22")
def test_a_buffer_of_batch_size_is_used_again():
    pool = make_pool()
    buffer = pool.allocate(BATCH, 0)
    assert (len(buffer), pool.available_bytes) == (BATCH, TOTAL - BATCH)
    pool.release(buffer, BATCH)
    assert pool.available_bytes == TOTAL
    assert pool.allocate(BATCH, 0) is buffer


@pytest.mark.behaviour("P51")
def test_a_thread_that_waits_for_memory_does_not_wait_behind_itself(monkeypatch):
    """As a signal handler would that sends while the thread it has interrupted waits."""
    pool = make_pool()
    full = pool.allocate(TOTAL, 0)
    raised: list[Exception] = []

    def interrupt(event: OneShotEvent, timeout: float | None = None) -> bool:
        if not raised:
            raised.append(IllegalStateError("not raised"))
            pool.release(full, TOTAL)
            with pytest.raises(IllegalStateError, match="called by a signal handler") as caught:
                pool.allocate(BATCH, LONG_MS)
            raised[0] = caught.value
        return True

    monkeypatch.setattr(OneShotEvent, "wait", interrupt)
    assert len(pool.allocate(2 * BATCH, LONG_MS)) == 2 * BATCH
    assert "called by a signal handler" in str(raised[0])
    assert pool.waiting_threads == 0


def test_other_sizes_are_only_counted():
    pool = make_pool()
    buffer = pool.allocate(BATCH + 1, 0)
    pool.release(buffer, BATCH + 1)
    assert pool.available_bytes == TOTAL
    assert pool.allocate(BATCH + 1, 0) is not buffer


def test_kept_buffers_are_given_up_for_a_larger_one():
    pool = make_pool()
    for buffer in [pool.allocate(BATCH, 0) for _ in range(4)]:
        pool.release(buffer, BATCH)
    assert len(pool.allocate(TOTAL - 10, 0)) == TOTAL - 10
    assert pool.available_bytes == 10


def test_more_than_all_there_is_is_refused_at_once():
    with pytest.raises(RecordTooLargeError, match=r"4097 bytes .* buffer.memory \(4096\)"):
        make_pool().allocate(TOTAL + 1, LONG_MS)


@pytest.mark.behaviour("P22")
def test_a_timeout_error_says_what_is_used_and_who_waits():
    exhausted: list[int] = []
    waited: list[float] = []
    pool = make_pool(
        why_full=lambda: "broker 1 does not respond", on_exhausted=lambda: exhausted.append(1), on_wait=waited.append
    )
    pool.allocate(TOTAL - 10, 0)
    with pytest.raises(BufferExhaustedError) as caught:
        pool.allocate(BATCH, 0)
    assert isinstance(caught.value, TimedOutError)
    for part in (
        "0.0 of 0.00390625 MiB",
        "1024 bytes requested",
        "1 threads waiting",
        "broker 1",
        "raise buffer.memory",
    ):
        assert part in str(caught.value)
    assert "1024 bytes requested, 10 free, " in str(caught.value)
    assert (exhausted, len(waited), pool.waiting_threads) == ([1], 1, 0)
    assert pool.available_bytes == 10  # a failure takes nothing with it


@pytest.mark.behaviour("P22")
def test_a_timeout_error_says_how_much_is_used_and_how_many_wait():
    mib = 1024 * 1024
    pool = BufferPool(32 * mib, BATCH, FakeClock())
    pool.allocate(24 * mib, 0)
    waiters = [AllocatingThread(pool, 16 * mib, [], name) for name in ("first", "second")]
    with pytest.raises(
        BufferExhaustedError,
        match=rf"24\.0 of 32 MiB in use for 0 s .max.block.ms., .* {8 * mib} free, 3 threads waiting",
    ):
        pool.allocate(16 * mib, 0)
    pool.close()
    for waiter in waiters:
        waiter.join()


@pytest.mark.behaviour("P22")
def test_a_buffer_of_another_size_is_not_used_again_and_its_memory_is():
    pool = make_pool()
    odd = pool.allocate(BATCH + 1, 0)
    pool.release(odd, BATCH + 1)
    assert pool.available_bytes == TOTAL
    assert len(pool.allocate(BATCH, 0)) == BATCH
    spare = pool.allocate(BATCH, 0)
    pool.release(spare, BATCH)
    assert len(pool.allocate(3 * BATCH, 0)) == 3 * BATCH  # made of memory that a spare buffer held


@pytest.mark.behaviour("P22")
def test_a_thread_woken_before_its_turn_keeps_waiting():
    pool = make_pool()
    held = [pool.allocate(BATCH, 0) for _ in range(4)]
    done: list[str] = []
    large = AllocatingThread(pool, 3 * BATCH, done, "large")
    small = AllocatingThread(pool, BATCH, done, "small")
    waiter = pool._waiters[1]

    def has_looked(woken: OneShotEvent) -> bool:
        return waiter.woken is not woken or bool(done)

    pool.release(held.pop(), BATCH)  # enough for the small one
    for _ in range(2):  # when it has begun to wait for the second time, it has looked once
        woken = waiter.woken
        woken.set()
        eventually("another look", partial(has_looked, woken))
    assert (done, pool.waiting_threads) == ([], 2)
    for buffer in held:
        pool.release(buffer, BATCH)
    large.join()
    small.join()
    assert done[0] == "large"


@pytest.mark.behaviour("P22")
def test_waiting_threads_are_served_in_order_regardless_of_size():
    pool = make_pool()
    held = [pool.allocate(BATCH, 0) for _ in range(4)]
    done: list[str] = []
    large = AllocatingThread(pool, 3 * BATCH, done, "large")
    small = AllocatingThread(pool, BATCH, done, "small")
    pool.release(held.pop(), BATCH)  # enough for the small one, but another thread is first in line
    assert eventually("both still wait", lambda: pool.waiting_threads == 2)
    assert done == []
    pool.release(held.pop(), BATCH)
    pool.release(held.pop(), BATCH)
    large.join()
    pool.release(held.pop(), BATCH)
    small.join()
    assert done == ["large", "small"]


def test_no_thread_overtakes_a_waiting_one():
    pool = make_pool()
    held = pool.allocate(TOTAL - BATCH, 0)
    waiter = AllocatingThread(pool, 2 * BATCH, [], "first")
    with pytest.raises(BufferExhaustedError):
        pool.allocate(1, 0)  # there is memory, but somebody else was here before
    pool.release(held, TOTAL - BATCH)
    waiter.join()
    pool.allocate(1, 0)


def test_a_running_thread_may_overtake_the_first_waiter_a_limited_number_of_times():
    pool = make_pool()
    held = pool.allocate(TOTAL, 0)
    pool._waiters.append(waiter := Waiter(BATCH))  # a thread that never wakes up
    waiter.thread_id = 0
    pool.release(held, TOTAL)
    for _ in range(OVERTAKES_MAX):
        pool.release(pool.allocate(BATCH, 0), BATCH)
    with pytest.raises(BufferExhaustedError):
        pool.allocate(BATCH, 0)


def test_a_waiter_that_gives_up_wakes_the_next():
    pool = make_pool()
    held = pool.allocate(TOTAL - BATCH, 0)
    clock = pool._clock
    assert isinstance(clock, FakeClock)
    done: list[str] = []
    impatient = AllocatingThread(pool, 2 * BATCH, done, "impatient", timeout_ms=20)
    patient = AllocatingThread(pool, BATCH, done, "patient")
    clock.advance(20)
    impatient.join()
    patient.join()
    assert done == ["patient"]
    assert isinstance(impatient.error, BufferExhaustedError)
    pool.release(held, TOTAL - BATCH)


def test_closing_wakes_waiting_threads_and_refuses_new_ones():
    pool = make_pool()
    held = pool.allocate(TOTAL, 0)
    waiters = [AllocatingThread(pool, BATCH, [], n) for n in range(3)]
    pool.close()
    for waiter in waiters:
        waiter.join()
        assert isinstance(waiter.error, ClosedError)
    with pytest.raises(ClosedError):
        pool.allocate(1, 0)
    pool.release(held, TOTAL)  # what is out may come back
    assert pool.available_bytes == TOTAL


def test_a_reservation_is_counted_without_a_buffer():
    pool = make_pool()
    claim = Claim()
    pool.reserve(3 * BATCH, 0, claim)
    assert (claim.size, claim.buffer, pool.available_bytes) == (3 * BATCH, None, BATCH)
    pool.give_back(claim)
    pool.give_back(claim)  # there is nothing in it any more
    assert pool.available_bytes == TOTAL


def test_many_threads_lose_no_memory():
    pool = BufferPool(TOTAL, BATCH, FakeClock())

    def work(seed: int) -> None:
        for n in range(200):
            size = BATCH if (n + seed) % 3 else 1 + (n * 37 + seed) % (2 * BATCH)
            buffer = pool.allocate(size, LONG_MS)
            pool.release(buffer, size)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
        assert not thread.is_alive()
    assert (pool.available_bytes, pool.waiting_threads) == (TOTAL, 0)
