"""A batch and the futures of its records: results, errors, callbacks, splitting."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from headrace.errors import BrokerError, HeadraceError, TimedOutError
from headrace.producer._send import TopicAppender
from headrace.producer.batch import ProducerBatch
from headrace.wire.kernel import KERNEL_NAME
from headrace.wire.layout import NO_SEQUENCE
from headrace.wire.records import read_batches
from tests.support.waiting import eventually

pytestmark = pytest.mark.both_kernels

SECONDS_MAX = 20


class Opened:
    """An open batch of "t"-0 with an appender, as `send` does."""

    def __init__(self, size: int = 4096, now_ms: Any = lambda: 5000) -> None:
        appender = TopicAppender(
            "t", 1, record_bytes_max=1 << 20, hashes_keys=True, lock=threading.RLock(), now_ms=now_ms
        )
        self.batch = ProducerBatch("t", 0, bytearray(size), 0, 0.0)
        appender.open_batches[0] = self.batch
        self._appender = appender

    def append(self, value: bytes | None = b"v", key: bytes | None = None, on_delivery: Any = None) -> Any:
        future = self._appender.try_append(key, value, 0, None, None, on_delivery)
        assert future is not None
        return future


def in_thread(target: Any, *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread


# -- results -------------------------------------------------------------------------------------


@pytest.mark.behaviour("P38")
def test_metadata_has_partition_timestamp_and_sizes():
    opened = Opened()
    first, second = opened.append(b"abc", b"k"), opened.append(None)
    assert not first.done()
    opened.batch.complete(70, -1)
    assert first.done()
    metadata = first.result(0)
    assert metadata == ("t", 0, 70, 5000, 1, 3)
    assert (metadata.has_offset, metadata.has_timestamp, str(metadata)) == (True, True, "t-0@70")
    assert second.result(0) == ("t", 0, 71, 5000, -1, -1)
    assert first.exception(0) is None


def test_the_brokers_time_wins():
    opened = Opened()
    future = opened.append()
    opened.batch.complete(1, 9000)
    assert future.result(0).timestamp_ms == 9000


@pytest.mark.skipif(KERNEL_NAME == "python", reason="the reference gets the clock from its caller")
def test_timestamps_are_those_of_the_system_to_the_millisecond():
    opened = Opened(1 << 20, now_ms=None)
    times = []
    for _ in range(200):
        before_ms = time.time_ns() // 1_000_000
        for _ in range(20):  # some of them without reading the clock
            future = opened.append()
            after_ms = time.time_ns() // 1_000_000
            # A time that was read up to 0.1 ms before is used again.
            assert before_ms - 1 <= future.timestamp <= after_ms
        times.append(future.timestamp)
        time.sleep(0.0005)
    assert len(set(times)) > 50


def test_without_an_offset_there_is_none():
    opened = Opened()
    future = opened.append()
    opened.batch.complete(-1, -1)
    assert future.result(0).offset is None
    assert not future.result(0).has_offset


def test_an_error_is_raised_or_returned():
    opened = Opened()
    future = opened.append()
    error = HeadraceError("no")
    opened.batch.fail(error)
    assert future.exception(0) is error
    with pytest.raises(HeadraceError, match="no"):
        future.result(0)


def test_waiting_has_an_end():
    future = Opened().append()
    with pytest.raises(TimedOutError, match=r"timed out after 0\.01 s .* record 0 of a batch to t-0"):
        future.result(0.01)
    with pytest.raises(TimedOutError):
        future.exception(0)


def test_a_waiting_thread_is_woken():
    opened = Opened()
    future = opened.append()
    got: list[Any] = []
    thread = in_thread(lambda: got.append(future.result(SECONDS_MAX)))
    eventually("the thread waits", lambda: opened.batch._event is not None)
    opened.batch.complete(3, -1)
    thread.join(SECONDS_MAX)
    assert got[0].offset == 3


def test_the_first_outcome_stands():
    opened = Opened()
    future = opened.append()
    assert opened.batch.fail(HeadraceError("expired"))
    assert not opened.batch.complete(5, -1)
    assert not opened.batch.fail(HeadraceError("later"))
    assert str(future.exception(0)) == "expired"


# -- callbacks -----------------------------------------------------------------------------------


@pytest.mark.behaviour("P37")
def test_callbacks_run_once_in_order_with_metadata():
    opened = Opened()
    heard: list[Any] = []
    for n in range(5):
        opened.append(b"%d" % n, on_delivery=lambda metadata, error, n=n: heard.append((n, metadata.offset, error)))
    opened.batch.complete(10, -1)
    opened.batch.complete(10, -1)
    assert heard == [(n, 10 + n, None) for n in range(5)]


def test_callbacks_get_the_error():
    opened = Opened()
    heard: list[Any] = []
    opened.append(on_delivery=lambda *outcome: heard.append(outcome))
    error = HeadraceError("no")
    opened.batch.fail(error)
    assert heard == [(None, error)]


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_callback_that_raises_affects_no_other(succeeds):
    opened = Opened()
    heard: list[Any] = []

    def bad(metadata: Any, error: Any) -> None:
        raise ValueError("of the callback")

    opened.append(on_delivery=bad)
    future = opened.append(on_delivery=lambda *outcome: heard.append(outcome))
    if succeeds:
        opened.batch.complete(1, -1)
        assert future.result(0).offset == 2
    else:
        opened.batch.fail(HeadraceError("no"))
    assert len(heard) == 1
    assert [str(error) for error in opened.batch.callback_errors] == ["of the callback"]


def test_a_done_callback_is_called_later_or_at_once():
    opened = Opened()
    future = opened.append()
    heard: list[Any] = []
    future.add_done_callback(heard.append)
    assert heard == []
    opened.batch.complete(1, -1)
    assert heard == [future]
    future.add_done_callback(heard.append)
    assert heard == [future, future]


def test_done_callbacks_are_called_once_each():
    for _ in range(50):
        opened = Opened()
        futures = [opened.append() for _ in range(20)]
        heard: list[Any] = []
        start = threading.Barrier(2)

        def add(futures=futures, heard=heard, start=start) -> None:
            start.wait(SECONDS_MAX)
            for future in futures:
                future.add_done_callback(heard.append)

        thread = in_thread(add)
        start.wait(SECONDS_MAX)
        opened.batch.complete(1, -1)
        thread.join(SECONDS_MAX)
        assert sorted(future.index for future in heard) == list(range(20))


def test_done_callbacks_follow_a_batch_that_is_split_meanwhile():
    for _ in range(30):
        opened = Opened()
        futures = [opened.append(b"x" * 30) for _ in range(10)]
        opened.batch.close()
        heard: list[Any] = []
        start = threading.Barrier(2)

        def add(futures=futures, heard=heard, start=start) -> None:
            start.wait(SECONDS_MAX)
            for future in futures:
                future.add_done_callback(heard.append)

        thread = in_thread(add)
        start.wait(SECONDS_MAX)
        parts = opened.batch.split(0.0)
        for part in parts:
            part.complete(1, -1)
        thread.join(SECONDS_MAX)
        assert sorted(future.index for future in heard) == list(range(10))


# -- asyncio -------------------------------------------------------------------------------------


@pytest.mark.behaviour("P37")
def test_a_future_can_be_awaited():
    opened = Opened()
    good, soon = opened.append(), opened.append()

    async def main() -> Any:
        asyncio.get_running_loop().call_later(0.01, lambda: in_thread(opened.batch.complete, 4, -1))
        return await asyncio.wait_for(good, SECONDS_MAX), await soon

    first, second = asyncio.run(main())
    assert (first.offset, second.offset) == (4, 5)


def test_awaiting_raises_the_error():
    opened = Opened()
    future = opened.append()

    async def main() -> None:
        asyncio.get_running_loop().call_soon(opened.batch.fail, HeadraceError("no"))
        await future

    with pytest.raises(HeadraceError, match="no"):
        asyncio.run(main())


def test_a_cancelled_await_leaves_the_record_alone(caplog):
    opened = Opened()
    future = opened.append()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future, 0.01)

    asyncio.run(main())
    opened.batch.complete(8, -1)  # its loop is gone by now
    assert future.result(0).offset == 8


# -- errors of single records (KIP-467) ----------------------------------------------------------


def test_a_single_invalid_record_has_the_code_of_the_batch():
    opened = Opened()
    good, bad = opened.append(), opened.append()
    error = BrokerError("t-0", code=32)
    opened.batch.fail(error, {1: "the time is out of range"})
    assert isinstance(bad.exception(0), BrokerError)
    assert bad.exception(0).code == 32
    assert "the time is out of range" in str(bad.exception(0))
    assert not isinstance(good.exception(0), BrokerError)
    assert "another record of its batch was rejected" in str(good.exception(0))


def test_of_several_culprits_each_has_its_own_message():
    opened = Opened()
    futures = [opened.append() for _ in range(3)]
    opened.batch.fail(BrokerError("t-0", code=32), {0: "this", 2: "that"})
    first, _, third = (future.exception(0) for future in futures)
    assert (first.code, third.code) == (87, 87)
    assert ("this" in str(first), "that" in str(third)) == (True, True)


# -- splitting -----------------------------------------------------------------------------------


def filled(count: int = 10, on_delivery: Any = None) -> tuple[ProducerBatch, list[Any]]:
    opened = Opened()
    futures = [opened.append(b"%03d" % n * 10, b"k%d" % n, on_delivery) for n in range(count)]
    opened.batch.close()
    return opened.batch, futures


def test_parts_have_the_same_records_and_following_sequences():
    batch, _ = filled(10)
    batch.set_producer_state(7, 1, 0x7FFFFFFF - 3, True)
    parts = batch.split(50.0)
    assert len(parts) >= 2
    values, sequences = [], []
    for part in parts:
        (wire,) = read_batches(part.seal(0, None))
        values += [record.value for record in wire.records()]
        sequences.append((wire.header.base_sequence, wire.header.record_count))
        assert (wire.header.producer_id, wire.header.producer_epoch) == (7, 1)
        assert (part.attempts, part.created_ms, part.is_transactional) == (0, batch.created_ms, True)
    assert values == [b"%03d" % n * 10 for n in range(10)]
    expected = 0x7FFFFFFF - 3
    for base, count in sequences:
        assert base == expected
        expected = (expected + count) & 0x7FFFFFFF


@pytest.mark.behaviour("P27")
def test_futures_and_callbacks_follow_their_part():
    heard: list[Any] = []
    batch, futures = filled(10, lambda metadata, error: heard.append(metadata and metadata.offset))
    first, *rest = batch.split(0.0)
    assert not any(future.done() for future in futures)
    first.fail(HeadraceError("first half"))
    offset = 0  # less than the index of the first record of the part
    for part in rest:
        part.complete(offset, -1)
        offset += part.record_count
    cut = first.record_count
    assert all(str(future.exception(0)) == "first half" for future in futures[:cut])
    assert [future.result(0).offset for future in futures[cut:]] == list(range(10 - cut))
    assert heard == [None] * cut + list(range(10 - cut))


def test_a_part_may_be_split_again():
    batch, futures = filled(16)
    todo, leaves = [batch], []
    while todo:
        part = todo.pop(0)
        if part.record_count == 1:
            leaves.append(part)
        else:
            todo[:0] = part.split(0.0)
    assert len(leaves) == 16
    assert batch.final_parts() == leaves
    assert not batch.wait_done(0)
    for n, leaf in enumerate(leaves):
        leaf.complete(100 + n, -1)
    assert [future.result(0).offset for future in futures] == [100 + n for n in range(16)]
    assert batch.wait_done(0)


def test_a_wait_for_a_split_batch_continues_for_its_part():
    batch, futures = filled(4)
    got: list[Any] = []
    thread = in_thread(lambda: got.append(futures[3].exception(SECONDS_MAX)))
    eventually("the thread waits", lambda: batch._event is not None)
    parts = batch.split(0.0)
    parts[0].complete(0, -1)
    assert got == []
    for part in parts[1:]:
        part.fail(HeadraceError("second"))
    thread.join(SECONDS_MAX)
    assert str(got[0]) == "second"


def test_a_split_batch_of_one_large_and_small_records_gets_smaller():
    opened = Opened(size=8192)
    opened.append(b"x" * 5000)
    for _ in range(3):
        opened.append(b"y")
    opened.batch.close()
    parts = opened.batch.split(0.0)
    assert [part.record_count for part in parts] == [1, 3]


# -- numbers -------------------------------------------------------------------------------------


def test_a_new_producer_state_seals_the_batch_again():
    batch, _ = filled(2)
    assert (batch.has_sequence, batch.base_sequence) == (False, NO_SEQUENCE)
    batch.set_producer_state(7, 0, 5, False)
    assert batch.seal(0, None) is batch.seal(0, None)
    batch.set_producer_state(7, 1, 0, False)
    (wire,) = read_batches(batch.seal(0, None))
    assert (wire.header.producer_epoch, wire.header.base_sequence) == (1, 0)
    wire.verify()


def test_the_last_sequence_is_right_across_the_wrap():
    batch, _ = filled(4)
    batch.set_producer_state(7, 0, 0x7FFFFFFF, False)
    assert batch.last_sequence == 2
