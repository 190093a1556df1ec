"""What Spark's Python processes keep between calls: bounded, and separate for each query."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from headrace.spark import worker
from headrace.spark.worker import PerRun


class Session:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Rig:
    """Sessions by sink and run, on a clock that stands still."""

    def __init__(self, count_max: int = 8, idle_seconds_max: float = 60.0) -> None:
        self.now = 0.0
        self.kept: PerRun[Session] = PerRun(count_max, idle_seconds_max, lambda: self.now)

    def get(self, sink: str, run: str = "run") -> Session:
        return self.kept.get("broker:9092", sink, run, Session)


def test_a_run_keeps_its_session_and_the_next_run_of_the_sink_gets_another():
    rig = Rig()
    first = rig.get("sink")
    assert rig.get("sink") is first
    other = rig.get("another sink")
    second = rig.get("sink", "next run")
    assert second is not first
    assert (first.is_closed, other.is_closed) == (True, False)


def test_the_longest_unused_session_is_closed_when_there_are_too_many():
    rig = Rig(count_max=3)
    sessions = [rig.get(f"sink-{n}") for n in range(3)]
    rig.get("sink-0")
    rig.get("sink-3")
    assert [session.is_closed for session in sessions] == [False, True, False]


def test_an_unused_session_is_closed_after_some_time():
    rig = Rig(idle_seconds_max=60)
    ended, lasting = rig.get("ended"), rig.get("lasting")
    for rig.now in (30.0, 61.0):
        assert rig.get("lasting") is lasting
    assert (ended.is_closed, lasting.is_closed) == (True, False)


def test_a_session_that_is_given_up_is_not_closed_for_its_owner():
    rig = Rig()
    session = rig.get("sink")
    assert rig.kept.discard(session)
    assert not rig.kept.discard(session)
    assert not session.is_closed
    assert rig.get("sink") is not session


class BrokenSession(Session):
    def close(self) -> None:
        super().close()
        raise OSError("socket is gone")


def test_a_session_that_cannot_be_closed_does_not_get_in_the_way_of_others(caplog):
    rig = Rig(count_max=3, idle_seconds_max=60)
    broken = [rig.kept.get("broker:9092", f"sink-{n}", "run", BrokenSession) for n in range(2)]
    idle = rig.get("sink-2")
    rig.now = 61.0
    session = rig.get("sink-0", "next run")
    assert [old.is_closed for old in (*broken, idle, session)] == [True, True, True, False]
    assert rig.get("sink-0", "next run") is session
    failures = caplog.text.count("closing its connections in this process failed")
    assert failures == caplog.text.count("socket is gone") / 2 == 2


@pytest.fixture
def fresh_worker(monkeypatch):
    monkeypatch.setattr(worker, "_worker", None)


def test_a_transactional_id_is_used_again_for_the_next_batch_only(fresh_worker):
    first = [worker.transactional_id("sink", "run", 0) for _ in range(2)]
    assert len(set(first)) == 2
    assert [worker.transactional_id("sink", "run", 1) for _ in range(2)] == first


@pytest.mark.behaviour("S11")
def test_a_worker_with_many_queries_never_reuses_an_id_within_a_batch(fresh_worker):
    """An id whose run was forgotten may have its transaction still open: to use it again would abort that."""
    ids = [
        worker.transactional_id(f"sink-{query}", "run", 0) for _ in range(2) for query in range(worker.RUNS_MAX + 10)
    ]
    assert len(set(ids)) == len(ids)
