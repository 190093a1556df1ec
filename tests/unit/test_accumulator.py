"""Where records wait: appending, when a node is ready, what is drained, splitting, expiry."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import Any

import pytest

from headrace.errors import BufferExhaustedError, ClosedError, IllegalStateError, RecordTooLargeError
from headrace.producer.buffer_pool import Waiter
from headrace.producer.records import PreparedRecord
from tests.support.rig import PRODUCE, Rig
from tests.support.waiting import eventually

pytestmark = pytest.mark.both_kernels

SECONDS_MAX = 20


def ready_nodes(rig: Rig) -> list[int]:
    return sorted(rig.accumulator.ready(rig.metadata.cluster, rig.clock.now_ms).nodes)


def drain(rig: Rig, node: int = 0) -> list[Any]:
    ready = rig.accumulator.ready(rig.metadata.cluster, rig.clock.now_ms)
    return rig.accumulator.drain(ready.nodes.get(node, []), None, None)


def queue(rig: Rig, partition: int = 0) -> list[Any]:
    return list(rig.accumulator.topics["t"].queues[partition].batches)


# -- appending -----------------------------------------------------------------------------------


@pytest.mark.behaviour("P21")
def test_records_of_a_partition_share_its_last_batch_while_there_is_room():
    rig = Rig()
    futures = [rig.send(b"x" * 100, 0) for _ in range(5)] + [rig.send(b"x" * 100, 1)]
    assert [f.index for f in futures] == [0, 1, 2, 3, 4, 0]
    assert (len(queue(rig, 0)), len(queue(rig, 1))) == (1, 1)
    while len(queue(rig)) == 1:
        rig.send(b"x" * 100, 0)
    first, second = queue(rig)
    assert (first.closed, second.closed, second.record_count) == (True, False, 1)
    assert first.size <= 1024


@pytest.mark.behaviour("P23")
def test_a_large_record_gets_a_batch_of_its_own_size():
    rig = Rig()
    rig.send(b"small")
    future = rig.send(b"x" * 5000)
    small, large = queue(rig)
    assert (future.batch, large.record_count) == (large, 1)
    assert large.allocated_bytes >= large.size > 5000
    assert rig.pool.available_bytes == rig.pool.total_bytes - 1024 - large.allocated_bytes
    rig.run_until(future.done)
    assert rig.pool.available_bytes == rig.pool.total_bytes
    assert small.is_done


@pytest.mark.behaviour("P20")
def test_a_record_that_no_request_can_carry_is_refused_with_size_and_option():
    rig = Rig(max_request_bytes=2000)
    with pytest.raises(RecordTooLargeError, match=r"the record takes 20\d\d bytes .* max.request.size \(2000\)"):
        rig.send(b"x" * 2000)
    rig = Rig(total_bytes=2048)
    with pytest.raises(RecordTooLargeError, match=r"the record takes 30\d\d bytes .* buffer.memory \(2048\)"):
        rig.send(b"x" * 3000)
    assert queue(rig) == []


@pytest.mark.behaviour("P21")
def test_the_open_batch_is_checked_again_after_waiting_for_memory():
    rig = Rig(total_bytes=2048, partitions=3)
    queues = rig.accumulator.topic("t", 3)
    rig.send(b"elsewhere", 1)
    rig.send(b"elsewhere", 2)
    got: list[Any] = []

    def append() -> None:
        deadline = rig.clock.now_ms + 20_000
        got.append(
            rig.accumulator.append(
                queues, rig.metadata.cluster, PreparedRecord(0, None, None, b"v", (), None), None, deadline
            )
        )

    threads = [threading.Thread(target=append, daemon=True) for _ in range(2)]
    for thread in threads:
        before = rig.pool.waiting_threads
        thread.start()
        eventually("a thread waits for memory", partial(lambda count: rig.pool.waiting_threads > count, before))
    rig.turn()  # the other batches are acknowledged, and their memory is released
    for thread in threads:
        thread.join(SECONDS_MAX)
        assert not thread.is_alive()
    assert sorted(f.index for f in got) == [0, 1]  # the second found the batch of the first
    assert (len(queue(rig)), rig.pool.waiting_threads, rig.pool.available_bytes) == (1, 0, 1024)


def test_no_memory_in_time_is_an_error_and_leaves_nothing_behind():
    rig = Rig(total_bytes=1024)
    rig.send(b"v", 0)
    with pytest.raises(BufferExhaustedError):
        rig.send(b"v", 1)
    assert (queue(rig, 1), rig.pool.waiting_threads) == ([], 0)


def test_a_batch_that_was_opened_for_a_bad_record_is_not_sent_empty():
    rig = Rig()
    headers: Any = ((b"not a text", b"x"),)
    with pytest.raises((TypeError, AttributeError)):
        rig.accumulator.append(
            rig.accumulator.topic("t", 2),
            rig.metadata.cluster,
            PreparedRecord(0, None, None, b"v", headers, None),
            None,
            rig.clock.now_ms,
        )
    rig.run_until(lambda: not rig.accumulator.has_incomplete())
    assert queue(rig) == []
    assert rig.pool.available_bytes == rig.pool.total_bytes
    assert PRODUCE not in rig.keys_sent()
    rig.run_until(rig.send(b"good").done)
    assert rig.log.values() == [b"good"]


def test_a_batch_that_was_opened_for_a_bad_record_takes_the_next_one():
    rig = Rig()
    headers: Any = ((b"not a text", b"x"),)
    topic = rig.accumulator.topic("t", 2)
    with pytest.raises((TypeError, AttributeError)):
        rig.accumulator.append(
            topic, rig.metadata.cluster, PreparedRecord(0, None, None, b"v", headers, None), None, rig.clock.now_ms
        )
    rig.run_until(rig.send(b"good").done)
    assert rig.log.values() == [b"good"]
    assert rig.keys_sent() == [PRODUCE]


def test_bytes_of_another_kind_are_taken():
    rig = Rig()
    queues = rig.accumulator.topic("t", 2)
    value: Any = bytearray(b"value")
    future = rig.accumulator.append(
        queues, rig.metadata.cluster, PreparedRecord(0, None, None, value, (), None), None, 0
    )
    rig.run_until(future.done)
    assert rig.log.values() == [b"value"]


@pytest.mark.behaviour("P21")
def test_a_partitioner_may_choose_again_before_a_new_batch_is_opened():
    rig = Rig()
    previous_partitions: list[int] = []

    def choose_again(previous: int) -> int:
        previous_partitions.append(previous)
        return 1

    def append() -> Any:
        queues = rig.accumulator.topic("t", 2)
        return rig.accumulator.append(
            queues, rig.metadata.cluster, PreparedRecord(0, None, None, b"v", (), choose_again), None, rig.clock.now_ms
        )

    assert append().batch.partition == 1
    rig.send(b"v", 0)
    assert append().batch.partition == 0  # there is an open batch: nothing to choose
    assert previous_partitions == [0]


def test_nothing_is_taken_after_closing():
    rig = Rig()
    rig.send()
    rig.accumulator.close()
    with pytest.raises(ClosedError):
        rig.send()


def test_a_refused_batch_gives_its_memory_back():
    rig = Rig(transactional_id="x")

    def refuse(topic: str, partition: int) -> None:
        raise IllegalStateError("no transaction")

    rig.accumulator._on_open = refuse
    with pytest.raises(IllegalStateError):
        rig.accumulator.append(
            rig.accumulator.topic("t", 2),
            rig.metadata.cluster,
            PreparedRecord(0, None, None, b"v", (), None),
            None,
            rig.clock.now_ms,
        )
    assert rig.pool.available_bytes == rig.pool.total_bytes
    assert not rig.accumulator.has_incomplete()


def test_more_partitions_keep_the_open_batches():
    rig = Rig(partitions=1)
    rig.send(b"a", 0)
    rig.leaders, rig.leader_epochs = [0, 0, 0], [0, 0, 0]
    rig.metadata.request_update()
    rig.turn(0)
    assert rig.send(b"b", 0).index == 1
    assert rig.send(b"c", 2).batch.partition == 2


# -- keyless records -----------------------------------------------------------------------------


@pytest.mark.behaviour("P16")
def test_keyless_records_stay_until_batch_size_then_move_on():
    rig = Rig(partitions=8, adaptive=False)
    partitions = [rig.send(b"x" * 300, None).batch.partition for _ in range(60)]
    runs = [partitions[0]]
    for partition in partitions[1:]:
        if partition != runs[-1]:
            runs.append(partition)
    assert 4 < len(runs) < 30  # neither one place for all nor another for each
    assert len(set(partitions)) > 3


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.behaviour("P16")
def test_keyless_records_avoid_partitions_without_a_leader(adaptive):
    rig = Rig(partitions=4, adaptive=adaptive, total_bytes=1 << 22)
    rig.leaders = [-1, 0, -1, 0]
    rig.metadata.request_update()
    rig.run_until(lambda: rig.metadata.cluster.leader("t", 0) == -1)
    partitions = Counter(rig.send(b"x" * 800, None).batch.partition for _ in range(200))
    assert set(partitions) == {1, 3}


def test_keyless_records_go_anywhere_if_there_is_no_leader_at_all():
    rig = Rig(partitions=3)
    rig.leaders = [-1, -1, -1]
    rig.metadata.request_update()
    rig.run_until(lambda: rig.metadata.cluster.leader("t", 0) == -1)
    assert rig.send(b"v", None).batch.partition in (0, 1, 2)


def test_short_queues_are_preferred():
    rig = Rig(partitions=2, total_bytes=1 << 22)
    for _ in range(20):
        rig.send(b"x" * 900, 0)
    partitions = Counter(rig.send(b"x" * 900, None).batch.partition for _ in range(15))
    assert partitions[1] > partitions[0]


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.behaviour("P16")
def test_partitions_of_a_node_that_takes_nothing_are_left_out_after_a_while(adaptive):
    rig = Rig(brokers=2, partitions=4, adaptive=adaptive, availability_timeout_ms=100, total_bytes=1 << 22)

    def partitions():
        return {rig.send(b"x" * 800, None).batch.partition for _ in range(300)}

    rig.stop_broker(1)  # 1 and 3 are its partitions
    rig.send(b"for it", 1)
    rig.turn()
    rig.clock.advance(100)
    rig.turn()
    assert partitions() >= {1, 3}, "not for longer than allowed"
    rig.clock.advance(1)
    rig.turn()
    assert partitions() == ({0, 2} if adaptive else {0, 1, 2, 3})
    rig.cluster.start(1)
    rig.run_until(lambda: rig.client.is_connected(1))
    rig.turn()
    assert partitions() >= {1, 3}, "its own again; the others' queues have grown long, and are chosen seldom"


def test_a_node_that_nothing_waits_for_is_not_left_out():
    rig = Rig(brokers=2, partitions=4, availability_timeout_ms=100, total_bytes=1 << 22)
    rig.run_until(rig.send(b"v", 1).done)
    rig.clock.advance(10_000)
    rig.turn()
    assert {rig.send(b"x" * 800, None).batch.partition for _ in range(300)} == {0, 1, 2, 3}


def test_where_every_node_takes_nothing_any_partition_will_do():
    rig = Rig(brokers=1, partitions=4, availability_timeout_ms=100, total_bytes=1 << 22)
    rig.stop_broker(0)
    rig.send(b"v", 1)
    rig.turn()
    rig.clock.advance(101)
    rig.turn()
    assert {rig.send(b"x" * 800, None).batch.partition for _ in range(300)} == {0, 1, 2, 3}


# -- ready ---------------------------------------------------------------------------------------


@pytest.mark.behaviour("P25")
def test_a_node_is_ready_when_the_linger_is_over():
    rig = Rig(linger_ms=50)
    rig.send()
    assert ready_nodes(rig) == []
    ready = rig.accumulator.ready(rig.metadata.cluster, rig.clock.now_ms)
    assert ready.next_check_ms == 50
    rig.clock.advance(49)
    assert ready_nodes(rig) == []
    rig.clock.advance(1)
    assert ready_nodes(rig) == [0]


@pytest.mark.behaviour("P25")
def test_a_node_is_ready_when_a_batch_is_full():
    rig = Rig(linger_ms=50)
    while len(queue(rig) if "t" in rig.accumulator.topics else []) < 2:
        assert "t" not in rig.accumulator.topics or ready_nodes(rig) == []
        rig.send(b"x" * 200)
    assert ready_nodes(rig) == [0]


@pytest.mark.behaviour("P25")
def test_a_node_is_ready_while_threads_wait_for_memory():
    rig = Rig(linger_ms=50)
    rig.send()
    rig.pool._waiters.append(Waiter(1))
    assert ready_nodes(rig) == [0]


def test_filling_batches_are_kept_while_full_ones_free_memory():
    rig = Rig(linger_ms=50, brokers=2, partitions=4, total_bytes=1 << 20)  # 0 and 2 on one node, 1 and 3 on the other
    while len(queue(rig, 0) if "t" in rig.accumulator.topics else []) < 2:
        rig.send(b"x" * 200, 0)
    rig.send(b"filling", 2)
    rig.send(b"filling", 3)
    rig.pool._waiters.append(Waiter(1))
    ready = rig.accumulator.ready(rig.metadata.cluster, rig.clock.now_ms)
    assert {node: [q.partition for q in queues] for node, queues in ready.nodes.items()} == {0: [0], 1: [3]}


def test_a_batch_that_fills_behind_a_full_one_lingers_on():
    rig = Rig(linger_ms=50)
    while len(queue(rig) if "t" in rig.accumulator.topics else []) < 3:
        rig.send(b"x" * 200)
    ready = rig.accumulator.ready(rig.metadata.cluster, rig.clock.now_ms)
    assert ready.next_check_ms == 50
    rig.turn()
    assert [batch.closed for batch in queue(rig)] == [False]
    assert sum(request.api_key == PRODUCE for request in rig.cluster.sent) == 2
    rig.clock.advance(50)
    rig.turn()
    assert queue(rig) == []


@pytest.mark.behaviour("P25")
def test_a_node_is_ready_while_a_flush_is_on():
    rig = Rig(linger_ms=50)
    rig.send()
    waiting = rig.accumulator.begin_flush("flush")
    assert ready_nodes(rig) == [0]
    assert len(waiting) == 1
    rig.accumulator.flushes.pop("flush")
    rig.turn(2)
    later = rig.send()
    assert ready_nodes(rig) == []
    assert later.batch not in waiting


def test_a_flush_does_not_wait_for_what_comes_after_it():
    rig = Rig(linger_ms=50)
    before = rig.send()
    (waiting,) = rig.accumulator.begin_flush("flush")
    after = rig.send()
    assert before.batch is waiting
    assert after.batch is not waiting


@pytest.mark.behaviour("P25")
def test_a_node_is_ready_when_the_producer_closes():
    rig = Rig(linger_ms=50)
    rig.send()
    rig.accumulator.close()
    assert ready_nodes(rig) == [0]


@pytest.mark.behaviour("P25", "P31")
def test_a_retry_waits_for_its_backoff_which_grows_even_when_in_a_hurry():
    rig = Rig()
    waits = []
    rig.send()
    (batch,) = drain(rig)
    for attempts in range(1, 8):
        batch.sent_to = 0
        rig.accumulator.reenqueue(batch, rig.clock.now_ms)
        assert batch.attempts == attempts
        rig.accumulator.begin_flush("flush")
        assert ready_nodes(rig) == []
        wait = rig.accumulator.ready(rig.metadata.cluster, rig.clock.now_ms).next_check_ms
        waits.append(wait)
        rig.clock.advance(wait)
        assert ready_nodes(rig) == [0]
        assert drain(rig) == [batch]
    for n, wait in enumerate(waits):
        expected = min(100 * 2**n, 1000)
        assert 0.8 * expected <= wait <= 1.2 * expected


def test_a_retry_to_a_new_leader_need_not_wait():
    rig = Rig(brokers=2)
    rig.send()
    (batch,) = drain(rig)
    batch.sent_to = 0
    rig.accumulator.reenqueue(batch, rig.clock.now_ms)
    assert ready_nodes(rig) == []
    rig.metadata.update_leader("t", 0, 1, 7)
    assert ready_nodes(rig) == [1]


@pytest.mark.behaviour("P26")
def test_a_muted_partition_is_not_ready():
    rig = Rig()
    rig.send(b"a", 0)
    (batch,) = drain(rig)
    rig.accumulator.mute(batch)
    rig.send(b"b", 0)
    assert ready_nodes(rig) == []
    rig.accumulator.unmute(batch)
    assert ready_nodes(rig) == [0]


def test_a_partition_without_leader_asks_for_metadata():
    rig = Rig()
    rig.leaders[0] = -1
    rig.metadata.request_update()
    rig.run_until(lambda: rig.metadata.cluster.leader("t", 0) == -1)
    rig.send(b"v", 0)
    ready = rig.accumulator.ready(rig.metadata.cluster, rig.clock.now_ms)
    assert (ready.nodes, ready.leaderless) == ({}, {"t"})


# -- drain ---------------------------------------------------------------------------------------


@pytest.mark.behaviour("P26")
def test_one_batch_of_each_partition_up_to_the_size_of_a_request():
    rig = Rig(partitions=4, max_request_bytes=2500)
    for partition in range(4):
        for _ in range(2):
            rig.send(b"x" * 900, partition)
    taken = drain(rig)
    assert len(taken) == 2
    assert len({batch.partition for batch in taken}) == 2


def test_a_batch_larger_than_a_request_goes_alone():
    rig = Rig(partitions=2, max_request_bytes=2500, codec=0)
    rig.send(b"x" * 2300, 0)
    rig.send(b"y" * 500, 1)
    assert [len(drain(rig)), len(drain(rig))] == [1, 1]


@pytest.mark.parametrize("brokers", [1, 2])
@pytest.mark.behaviour("P26")
def test_no_partition_starves(brokers):
    rig = Rig(partitions=8, brokers=brokers, max_request_bytes=1500, total_bytes=1 << 22, max_in_flight=1)
    for partition in range(8):
        for n in range(40):
            rig.send(b"%d" % n + b"x" * 900, partition)
    served: Counter[int] = Counter()
    for _ in range(24):
        ready = rig.accumulator.ready(rig.metadata.cluster, rig.clock.now_ms)
        for queues in ready.nodes.values():
            served.update(b.partition for b in rig.accumulator.drain(queues, None, None))
    assert len(served) == 8
    assert max(served.values()) - min(served.values()) <= 1


def test_several_requests_of_one_iteration_are_fair_too():
    rig = Rig(partitions=4, max_request_bytes=1500, total_bytes=1 << 22, max_in_flight=4)
    for partition in range(4):
        for _ in range(5):
            rig.send(b"x" * 900, partition)
    rig.turn()
    sent = [p.partition_index for s in rig.cluster.of(PRODUCE) for t in s.message.topic_data for p in t.partition_data]
    assert sorted(sent) == [0, 1, 2, 3]


@pytest.mark.behaviour("P26")
def test_batches_that_may_not_be_drained_are_skipped():
    rig = Rig(partitions=2)
    rig.send(b"a", 0)
    rig.send(b"b", 1)
    ready = rig.accumulator.ready(rig.metadata.cluster, rig.clock.now_ms)
    taken = rig.accumulator.drain(ready.nodes[0], lambda batch: batch.partition == 1, None)
    assert [batch.partition for batch in taken] == [1]
    assert len(queue(rig, 0)) == 1


def test_draining_closes_the_open_batch():
    rig = Rig()
    first = rig.send(b"a")
    (batch,) = drain(rig)
    second = rig.send(b"b")
    assert batch.closed
    assert second.batch is not first.batch


# -- putting back --------------------------------------------------------------------------------


def test_a_retried_batch_goes_to_the_front():
    rig = Rig()
    rig.send_batches(3)
    (first,) = drain(rig)
    rig.accumulator.reenqueue(first, rig.clock.now_ms)
    assert queue(rig)[0] is first


def test_numbered_batches_are_reenqueued_in_order():
    rig = Rig()
    rig.send_batches(6)
    taken = [drain(rig)[0] for _ in range(4)]
    for n, batch in enumerate(taken):
        batch.set_producer_state(1, 0, (0x7FFFFFFE + n) & 0x7FFFFFFF, False)  # across the wrap
    for n in (2, 0, 3, 1):
        rig.accumulator.reenqueue(taken[n], rig.clock.now_ms)
    assert queue(rig)[:4] == taken
    assert len(queue(rig)) == 6


def test_parts_of_a_split_batch_take_its_place_and_its_memory_comes_back():
    rig = Rig()
    futures = [rig.send(b"%d" % n) for n in range(4)]
    rig.accumulator.close_open_batches()
    rig.send(b"next")
    (batch,) = drain(rig)
    parts = rig.accumulator.split_and_reenqueue(batch, rig.clock.now_ms)
    assert queue(rig)[: len(parts)] == parts
    assert len(queue(rig)) == len(parts) + 1
    assert rig.pool.available_bytes == rig.pool.total_bytes - 1024  # of the batch that is still open
    rig.run_until(lambda: all(f.done() for f in futures))
    assert rig.log.values()[:4] == [b"0", b"1", b"2", b"3"]


# -- the end -------------------------------------------------------------------------------------


@pytest.mark.behaviour("P32")
def test_batches_expire_in_order():
    rig = Rig(delivery_timeout_ms=1000)
    rig.send_batches(2)
    rig.clock.advance(600)
    rig.send(b"later")
    assert rig.accumulator.next_expiry_ms(rig.clock.now_ms) == 400
    rig.clock.advance(400)
    expired = rig.accumulator.expired(rig.clock.now_ms)
    assert [batch.record_count for batch in expired] == [1, 1]
    assert len(queue(rig)) == 1
    assert rig.accumulator.next_expiry_ms(rig.clock.now_ms) == 600


def test_an_idle_accumulator_never_expires():
    rig = Rig()
    rig.accumulator.topic("t", 2)
    assert rig.accumulator.next_expiry_ms(rig.clock.now_ms) == float("inf")


def test_memory_of_a_finished_batch_comes_back_once():
    rig = Rig()
    rig.send()
    (batch,) = drain(rig)
    assert rig.pool.available_bytes == rig.pool.total_bytes - 1024
    rig.accumulator.finish(batch)
    rig.accumulator.finish(batch)
    assert rig.pool.available_bytes == rig.pool.total_bytes
    assert not rig.accumulator.has_incomplete()


def test_all_that_was_not_sent_can_be_taken_out():
    rig = Rig()
    rig.send(b"a", 0)
    rig.send(b"b", 1)
    taken = rig.accumulator.undrained()
    assert sorted(batch.partition for batch in taken) == [0, 1]
    assert all(batch.closed for batch in taken)
    assert not rig.accumulator.has_undrained()
    assert len(rig.accumulator.incomplete()) == 2


def test_many_threads_lose_and_double_nothing():
    rig = Rig(partitions=3, total_bytes=16 * 1024, batch_bytes=1024)
    queues = rig.accumulator.topic("t", 3)
    count, futures = 300, []

    def append(thread: int) -> None:
        for n in range(count):
            value = b"%d:%d" % (thread, n)
            futures.append(
                rig.accumulator.append(
                    queues,
                    rig.metadata.cluster,
                    PreparedRecord(n % 3, None, None, value, (), None),
                    None,
                    rig.clock.now_ms + 20_000,
                )
            )

    threads = [threading.Thread(target=append, args=(t,), daemon=True) for t in range(4)]
    for thread in threads:
        thread.start()

    def is_stored() -> bool:
        rig.turn()
        return len(futures) == 4 * count and all(f.done() for f in futures)

    eventually("all is stored", is_stored)
    values = [value for partition in range(3) for value in rig.log.values(partition) if value is not None]
    assert sorted(values) == sorted(b"%d:%d" % (t, n) for t in range(4) for n in range(count))
    for thread_id in range(4):
        for partition in range(3):
            own = [v for v in rig.log.values(partition) if v is not None and v.startswith(b"%d:" % thread_id)]
            assert own == sorted(own, key=lambda v: int(v.split(b":")[1]))
    assert rig.pool.available_bytes == rig.pool.total_bytes
