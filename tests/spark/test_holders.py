"""Runs and processes that share a sink, on real brokers, without Spark: which may decide, and what they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from headrace.client.admin import AdminClient
from headrace.client.blocking import BlockingClient
from headrace.client.fetcher import Fetcher
from headrace.client.offsets import EARLIEST
from headrace.producer.producer import Producer
from headrace.spark import decision_log
from headrace.spark.commit_types import Batch
from headrace.spark.committer import Committer
from headrace.spark.decision_log import DecisionLog
from headrace.spark.decisions import Decision, Fingerprint
from headrace.spark.errors import FencedError
from headrace.spark.holders import DriverProcess, Holder, Holders
from headrace.spark.ledger import Ledger
from headrace.spark.sink_options import SinkOptions
from headrace.spark.transactions import Redo, Transactions
from tests.support.crashes import committed
from tests.support.topics import new_topic, unique

QUERY = "query"


class Sink:
    """A sink with its own topic and decision topic."""

    def __init__(self, broker: Any, stack: ExitStack) -> None:
        self.bootstrap = broker.bootstrap
        self.name, self.topic = unique("sink"), new_topic(broker, "held")
        self.options = SinkOptions.parse(
            {
                "kafka.bootstrap.servers": broker.bootstrap,
                "topic": self.topic,
                "decision.topic": unique("decisions"),
            },
            is_stream=True,
        )
        self._stack = stack

    def client(self) -> BlockingClient:
        return self._stack.enter_context(BlockingClient(self.options.client_settings()))

    def ledger(self) -> Ledger:
        ledger = Ledger(self.options, self.name, self.client())
        self._stack.callback(ledger.close)
        return ledger

    def process(self, run: str) -> Committer:
        client = self.client()
        driver = DriverProcess(f"host-of-{run}", 4711, 0)
        committer = Committer(
            self.name, run, Ledger(self.options, self.name, client), Transactions(client), Redo(client), driver=driver
        )
        self._stack.callback(committer.close)
        return committer

    def log(self) -> DecisionLog:
        return DecisionLog(self.client(), self.options.decision_topic)

    def values(self) -> list[str]:
        records = committed(self.bootstrap, self.topic).values()
        return sorted((value or b"").decode() for partition in records for _, value in partition)


@pytest.fixture
def sink(either: Any) -> Iterator[Sink]:
    with ExitStack() as stack:
        yield Sink(either, stack)


def batch(number: int) -> Batch:
    rows = pa.RecordBatch.from_pydict({"value": [f"{number}"]})
    return Batch(QUERY, number, inline=[("", rows)], fingerprint=Fingerprint(1, number))


def commit(committer: Committer, sink: Sink, number: int) -> None:
    made = batch(number)
    committer.commit(replace(made, inline=[(sink.topic, columns) for _, columns in made.inline]))


@pytest.mark.behaviour("S11")
def test_processes_of_a_run_take_turns_and_the_next_run_fences_all_of_them(sink):
    first, second = sink.process("first"), sink.process("first")
    for number, process in enumerate([first, second, second, first, first, second]):
        commit(process, sink, number)
    newer = sink.process("second")
    commit(newer, sink, 6)
    for process in (first, second, sink.process("first")):
        with pytest.raises(
            FencedError, match=r"held by another driver: run second \(host host-of-second, process 4711"
        ):
            commit(process, sink, 7)
    commit(newer, sink, 7)
    assert sink.values() == [f"{number}" for number in range(8)]


@pytest.mark.behaviour("S11")
def test_a_run_that_only_took_the_lock_fences_no_other(sink):
    process = sink.process("first")
    commit(process, sink, 0)
    sink.ledger().open()
    commit(process, sink, 1)
    assert sink.values() == ["0", "1"]


@pytest.mark.behaviour("S11")
def test_a_hanging_driver_of_another_sink_does_not_block_a_sink(sink, monkeypatch):
    """It hangs in its decision, in the decision topic that both use."""
    monkeypatch.setattr(decision_log, "SETTLE_MS_MAX", 0)
    sink.ledger().open()
    with Producer({"bootstrap.servers": sink.bootstrap, "transactional.id": unique("hung")}) as hung:
        hung.init_transactions()
        hung.begin_transaction()
        hung.send(sink.options.decision_topic, b"{}", b'["hung","query"]')
        hung.flush()
        first, second = sink.process("first"), sink.process("first")
        for number, process in enumerate([first, second, first]):
            commit(process, sink, number)
        commit(sink.process("second"), sink, 2)
        assert sink.log().read(sink.name)[QUERY].batch == 2
        hung.abort_transaction()
    assert sink.values() == ["0", "1", "2"]


@pytest.mark.parametrize("when", ["on_rows", "on_written"])
def test_a_decision_whose_lock_is_taken_before_its_commit_is_refused(sink, when):
    """Whether a partition refuses it, or the coordinator: it is a matter of the lock, and nothing is stored."""
    first, second = sink.ledger(), sink.ledger()
    first.open()
    rows = pa.RecordBatch.from_pydict({"value": ["x"] * 100})
    take_lock: dict[str, Callable[[], None]] = {when: second.open}
    with pytest.raises(FencedError, match="another process has opened the ledger"):
        first.write(Decision(sink.name, QUERY, "run", 0), [(sink.topic, rows)], **take_lock)
    assert second.read() == {}
    assert sink.values() == []


def test_a_second_read_of_decisions_fetches_new_records_only(sink, monkeypatch):
    ledger, known = sink.ledger(), sink.log()
    ledger.open()
    assert known.read(sink.name) == {}
    decided = Decision(sink.name, QUERY, "run", 0)
    holders = Holders().followed_by(Holder("run", DriverProcess("host", 1, 2), 3))
    steps: list[Callable[[], None]] = [
        lambda: ledger.write(decided),
        lambda: ledger.write_holders(holders),
        lambda: ledger.write(replace(decided, query="another")),
        lambda: ledger.write(replace(decided, batch=1)),
        lambda: ledger.write(replace(decided, query="another"), as_tombstone=True),
    ]
    starts: list[int] = []
    real_assign = Fetcher.assign

    def assign(self: Fetcher, starting: Any, *arguments: Any, **options: Any) -> None:
        starts.extend(starting.values())
        real_assign(self, starting, *arguments, **options)

    for step in steps:
        step()
        new = sink.log()
        fresh = new.read(sink.name)
        with monkeypatch.context() as patch:
            patch.setattr(Fetcher, "assign", assign)
            assert known.read(sink.name) == fresh
        assert known.holders(sink.name) == new.holders(sink.name)
    assert fresh == {QUERY: replace(decided, batch=1)}
    assert known.holders(sink.name) == holders
    assert starts == sorted(set(starts))
    assert EARLIEST not in starts


def test_cached_decisions_are_dropped_when_the_decision_topic_is_recreated(sink):
    ledger, topic = sink.ledger(), sink.options.decision_topic
    ledger.open()
    ledger.write(Decision(sink.name, QUERY, "run", 0))
    assert ledger.read()
    with AdminClient(sink.bootstrap) as admin:
        admin.delete_topics([topic])
    ledger.open()
    for number in range(4):
        ledger.write(Decision(sink.name, "another", "run", number))
    assert list(ledger.read()) == ["another"]
