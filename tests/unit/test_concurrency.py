"""YieldingLock: the lock of a topic."""

from __future__ import annotations

import threading
import time

import pytest

from headrace.client.concurrency import YIELD_SECONDS, YieldingLock
from headrace.errors import IllegalStateError

SECONDS_MAX = 20


def test_only_one_thread_is_inside():
    lock, inside, most, rounds = YieldingLock(), 0, 0, 200

    def work() -> None:
        nonlocal inside, most
        for _ in range(rounds):
            with lock:
                inside += 1
                most = max(most, inside)
                time.sleep(0)  # let others try
                inside -= 1

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
        assert not thread.is_alive()
    assert (inside, most) == (0, 1)


def test_the_thread_that_is_inside_is_refused_and_still_inside():
    lock = YieldingLock()
    with lock:
        with pytest.raises(IllegalStateError, match="signal handler"), lock:
            pass
        assert lock.is_owned()
    assert not lock.is_owned()


def test_a_waiting_thread_does_not_own_the_lock_before_it_runs(monkeypatch):
    lock, tries = YieldingLock(), []
    owner_left = threading.Event()

    def sleep(seconds: float) -> None:
        tries.append(seconds)
        release.set()
        assert owner_left.wait(SECONDS_MAX)

    release = threading.Event()
    monkeypatch.setattr("headrace.client.concurrency.time.sleep", sleep)

    def own() -> None:
        with lock:
            entered.set()
            assert release.wait(SECONDS_MAX)
        owner_left.set()

    entered = threading.Event()
    owner = threading.Thread(target=own, daemon=True)
    owner.start()
    assert entered.wait(SECONDS_MAX)
    with lock:
        assert tries == [YIELD_SECONDS]
    owner.join(SECONDS_MAX)
