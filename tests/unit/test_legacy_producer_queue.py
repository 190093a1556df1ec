"""The queue of the 0.8 producer and its send thread, on a fake clock."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from headrace.errors import ClosedError
from headrace.legacy import KeyedMessage, QueueFullError
from headrace.legacy.queue import SYSTEM_WAITING_CLOCK, MessageQueue, SendThread
from tests.support.legacy_rig import WaitingFakeClock

SECONDS_MAX = 20


def message(number):
    return KeyedMessage("t", b"%d" % number)


def queue_of(messages_max, enqueue_timeout_ms, *, filled=0):
    clock = WaitingFakeClock()
    queue = MessageQueue(messages_max, enqueue_timeout_ms, clock)
    queue.put_all([message(number) for number in range(filled)])
    return queue, clock, clock.now_ms


@pytest.mark.behaviour("L03")
def test_a_timeout_of_zero_drops_at_once():
    queue, clock, started = queue_of(2, 0, filled=2)
    with pytest.raises(QueueFullError, match=r"queue full \(queue.buffering.max.messages=2\), 1 dropped") as caught:
        queue.put(message(2))
    assert caught.value.dropped_count == 1
    assert clock.now_ms == started
    assert queue.take(10, 0).values == [b"0", b"1"]


@pytest.mark.behaviour("L03")
def test_a_positive_timeout_waits_and_then_drops():
    queue, clock, started = queue_of(2, 2500, filled=2)
    with pytest.raises(QueueFullError, match="queue full for 2500 ms"):
        queue.put(message(2))
    assert clock.now_ms == started + 2500
    assert len(queue) == 2


@pytest.mark.behaviour("L03")
def test_a_wait_ends_as_soon_as_there_is_room():
    queue, clock, started = queue_of(2, 2500, filled=2)
    clock.at(1700, lambda: queue.take(1, 0))
    queue.put(message(2))
    assert clock.now_ms == started + 1700
    assert queue.take(10, 0).values == [b"1", b"2"]


@pytest.mark.behaviour("L03")
def test_a_negative_timeout_waits_without_a_limit():
    queue, clock, started = queue_of(1, -1, filled=1)
    clock.at(3_600_000, lambda: queue.take(1, 0))
    queue.put(message(1))
    assert clock.now_ms == started + 3_600_000


@pytest.mark.behaviour("L03")
def test_messages_that_do_not_fit_are_dropped_and_counted():
    queue, _, _ = queue_of(3, 0)
    with pytest.raises(QueueFullError, match="4 dropped") as caught:
        queue.put_all([message(number) for number in range(7)])
    assert caught.value.dropped_count == 4
    assert queue.take(10, 0).values == [b"0", b"1", b"2"]


def test_a_small_queue_preserves_the_order_of_many_messages():
    queue, clock, _ = queue_of(2, -1)
    taken = []
    for after_ms in range(1, 4):
        clock.at(after_ms, lambda: taken.extend(queue.take(2, 0).values))
    queue.put_all([message(number) for number in range(7)])
    assert taken + queue.take(9, 0).values == [b"%d" % number for number in range(7)]


def test_closing_the_queue_ends_a_wait_for_room():
    queue, clock, _ = queue_of(1, -1, filled=1)
    clock.at(500, queue.close)
    with pytest.raises(ClosedError, match="1 messages were not sent"):
        queue.put(message(1))
    with pytest.raises(ClosedError):
        queue.put_all([message(1)])
    assert len(queue.take(5, 1000)) == 1
    assert queue.take(5, 1000) is None


@pytest.mark.behaviour("L02")
def test_a_batch_is_taken_when_it_is_complete():
    queue, clock, started = queue_of(10, 0)
    for number in range(3):
        clock.at(100 * (number + 1), lambda number=number: queue.put(message(number)))
    assert queue.take(3, 5000).values == [b"0", b"1", b"2"]
    assert clock.now_ms == started + 300


@pytest.mark.behaviour("L02")
def test_an_incomplete_batch_is_taken_after_the_wait():
    queue, clock, started = queue_of(10, 0)
    clock.at(100, lambda: queue.put(message(0)))
    assert queue.take(3, 5000).values == [b"0"]
    assert clock.now_ms == started + 5000
    assert len(queue.take(3, 5000)) == 0


def test_a_batch_is_limited_in_size():
    queue, _, _ = queue_of(10, 0, filled=10)
    assert [len(queue.take(4, 0)) for _ in range(4)] == [4, 4, 2, 0]


class Handler:
    """Records batches with their times; fails on request."""

    def __init__(self, clock, *, fails_on=(), takes_ms=0.0):
        self.batches = []
        self.is_closed = False
        self._clock = clock
        self._fails_on = fails_on
        self._takes_ms = takes_ms

    def handle(self, messages):
        self.batches.append((self._clock.now_ms, messages.values))
        self._clock.advance(self._takes_ms)
        if set(messages.values) & set(self._fails_on):
            raise ValueError("no")

    def close(self):
        self.is_closed = True


def run_thread(queue, handler, clock, *, batch_messages=200, age_ms_max=5000.0):
    """Run the send thread's loop on this thread, until the queue is drained."""
    SendThread("test", queue, handler, batch_messages=batch_messages, age_ms_max=age_ms_max, clock=clock).run()
    return [(round(at_ms), values) for at_ms, values in handler.batches]


@pytest.mark.behaviour("L02")
def test_the_thread_sends_on_count_or_age():
    queue, clock, started = queue_of(10, 0)
    handler = Handler(clock)
    clock.at(1000, lambda: queue.put_all([message(0), message(1)]))  # complete
    clock.at(3000, lambda: queue.put(message(2)))  # too old 5 s after the last send
    clock.at(8000, lambda: queue.put(message(3)))
    clock.at(9000, queue.close)
    assert run_thread(queue, handler, clock, batch_messages=2) == [
        (started + 1000, [b"0", b"1"]),
        (started + 6000, [b"2"]),
        (started + 9000, [b"3"]),
    ]
    assert handler.is_closed


@pytest.mark.behaviour("L02")
def test_the_age_is_measured_from_the_end_of_the_last_send():
    queue, clock, started = queue_of(10, 0, filled=3)
    handler = Handler(clock, takes_ms=7000)
    clock.at(20_000, queue.close)
    assert run_thread(queue, handler, clock, batch_messages=2) == [
        (started, [b"0", b"1"]),
        (started + 7000 + 5000, [b"2"]),
    ]


@pytest.mark.behaviour("L01")
def test_the_thread_survives_a_failed_batch(caplog):
    queue, clock, _ = queue_of(10, 0, filled=3)
    handler = Handler(clock, fails_on=[b"1"])
    clock.at(100, queue.close)
    assert [values for _, values in run_thread(queue, handler, clock, batch_messages=1)] == [[b"0"], [b"1"], [b"2"]]
    assert "sending a batch of 1 messages failed" in caplog.text


def test_messages_of_many_threads_are_complete_and_ordered():
    queue = MessageQueue(7, -1, SYSTEM_WAITING_CLOCK)
    starts = range(0, 8000, 1000)

    def put(start):
        made = [KeyedMessage(f"t{n}", n, f"k{n}", f"p{n}") for n in range(start, start + 1000)]
        if start % 2000:
            for each in made:
                queue.put(each)
        else:
            for index in range(0, 1000, 10):
                queue.put_all(made[index : index + 10])

    threads = [threading.Thread(target=put, args=(start,)) for start in starts]
    for thread in threads:
        thread.start()
    taken: list[int] = []
    while len(taken) < 8000:
        batch = queue.take(5, 1000)
        assert batch is not None
        assert 0 < len(batch) <= 5
        for topic, n, key, partition_key in zip(
            batch.topics, batch.values, batch.keys, batch.partition_keys, strict=True
        ):
            assert (topic, key, partition_key) == (f"t{n}", f"k{n}", f"p{n}")
            assert isinstance(n, int)
            taken.append(n)
    for thread in threads:
        thread.join(SECONDS_MAX)
    for start in starts:
        assert [n for n in taken if start <= n < start + 1000] == list(range(start, start + 1000))


@pytest.mark.behaviour("L02")
def test_messages_put_just_before_close_are_sent():
    """The check that finds the queue empty also decides that it is drained."""
    queue, clock, _ = queue_of(10, 0)
    handler = Handler(clock)
    thread = SendThread("test", queue, handler, batch_messages=200, age_ms_max=5000.0, clock=clock)
    take = queue.take

    def take_and_then_put(count_max, wait_ms):
        batch = take(count_max, wait_ms)
        if not queue.is_closed:
            queue.put(message(1))
            queue.close()
        return batch

    queue.take = take_and_then_put
    thread.run()
    assert [values for _, values in handler.batches] == [[b"1"]]


def test_a_message_put_after_the_last_check_is_refused_not_lost():
    queue, _, _ = queue_of(10, 0)

    class Late(list):
        """Fields that close the queue between the check for room and the append."""

        def __iadd__(self, fields):  # type: ignore[misc]
            queue.close()
            assert queue.take(1, 0) is None
            self.extend(fields)
            return self

    queue._fields = Late()
    with pytest.raises(ClosedError, match="1 messages were not sent"):
        queue.put(message(1))


def test_a_message_put_between_check_and_close_is_sent():
    queue, _, _ = queue_of(10, 0)

    class Late(list):
        def __iadd__(self, fields):  # type: ignore[misc]
            queue.close()
            self.extend(fields)
            return self

    queue._fields = Late()
    queue.put(message(1))
    batch = queue.take(1, 0)
    assert batch is not None
    assert batch.values == [b"1"]
    assert queue.take(1, 0) is None


@pytest.mark.parametrize("thread_count", [1, 8])
def test_every_put_during_close_is_sent_or_raises(thread_count):
    for _ in range(20):
        queue = MessageQueue(1000, -1, SYSTEM_WAITING_CLOCK)
        accepted: list[int] = []

        def put_until_closed(queue=queue, accepted=accepted):
            with suppress(ClosedError):
                while True:
                    queue.put(message(1))
                    accepted.append(1)

        threads = [threading.Thread(target=put_until_closed) for _ in range(thread_count)]
        for thread in threads:
            thread.start()
        taken = 0
        while (batch := queue.take(50, 1000)) is not None:
            taken += len(batch)
            if taken > 3000 and not queue.is_closed:
                queue.close()
        for thread in threads:
            thread.join(SECONDS_MAX)
        assert taken == len(accepted)
