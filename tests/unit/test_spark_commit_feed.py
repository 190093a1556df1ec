"""The feed of commits from the processes that commit to the listener of the driver."""

from __future__ import annotations

import os
import tempfile
import time
import uuid

import pytest

pytest.importorskip("pyspark")

from headrace.spark import commit_feed
from headrace.spark.commit_feed import FEED_BYTES_MAX, REPLACE_BYTES, STALE_SECONDS, CommitFeed, append, is_wanted
from headrace.spark.commit_reporter import CommitReporter, commit_reporter, reported
from headrace.spark.sink_options import SinkOptions
from headrace.telemetry.codec import encode
from headrace.telemetry.listeners import CommitPhase
from headrace.telemetry.models import BatchReport, CommitReport

OPTIONS = SinkOptions.parse({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders"}, is_stream=True)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"headrace-{os.getuid()}"


@pytest.fixture
def run():
    return str(uuid.uuid4())


def report(run, batch=0, error=""):
    return CommitReport(
        id="p",
        host="h",
        pid=1,
        interval_ms=5000,
        name="n",
        sink="s",
        query="q",
        run=run,
        delivery="exactly-once",
        batches=(BatchReport(batch=batch, outcome="committed", error=error),),
    )


def numbers(reports):
    return [batch.batch for report in reports for batch in report.batches]


def test_reports_arrive_once_and_in_order(run):
    feed = CommitFeed(run)
    append(report(run, 1))
    append(report(run, 2))
    assert feed.read() == [report(run, 1), report(run, 2)]
    append(report(run, 3))
    assert numbers(feed.read()) == [3]
    assert feed.read() == []


def test_nothing_is_written_without_a_listener(run, folder):
    assert not is_wanted(run)
    append(report(run))
    assert not folder.exists()
    assert commit_reporter(OPTIONS, "sink", "query", run) is None


def test_run_that_is_not_a_streaming_query_is_not_wanted(folder):
    CommitFeed(str(uuid.uuid4()))
    (folder / "commits-x.jsonl").touch()
    assert not is_wanted("x")
    assert not is_wanted("../x")


def test_closed_feed_removes_its_file(run, folder):
    feed = CommitFeed(run)
    assert is_wanted(run)
    feed.close()
    assert not is_wanted(run)
    assert list(folder.iterdir()) == []


def test_two_listeners_read_the_same_reports(run):
    first, second = CommitFeed(run), CommitFeed(run)
    append(report(run, 1))
    assert numbers(first.read()) == numbers(second.read()) == [1]


def test_file_is_replaced_before_it_is_full_and_nothing_is_lost(run, folder):
    first, second = CommitFeed(run), CommitFeed(run)
    padding, batches = "x" * 500, 3 * REPLACE_BYTES // 500
    seen: dict[str, list[int]] = {"first": [], "second": []}
    for number in range(batches):
        append(report(run, number, padding))
        seen["first"] += numbers(first.read())
        if number % 100 == 0:
            seen["second"] += numbers(second.read())
    seen["second"] += numbers(second.read()) + numbers(second.read())
    assert seen["first"] == seen["second"] == list(range(batches))
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2 * REPLACE_BYTES


def test_feed_that_nobody_reads_is_bounded(run, folder):
    feed = CommitFeed(run)
    line = len(encode(report(run, 0, "x" * 500))) + 1
    for number in range(FEED_BYTES_MAX // line + 50):
        append(report(run, number, "x" * 500))
    (path,) = folder.iterdir()
    assert FEED_BYTES_MAX - 2 * line < path.stat().st_size <= FEED_BYTES_MAX
    assert numbers(feed.read())[0] == 0


def test_torn_line_is_read_when_it_is_complete(run, folder):
    feed = CommitFeed(run)
    (path,) = folder.iterdir()
    line = encode(report(run, 5)) + b"\n"
    path.write_bytes(line[:20])
    assert feed.read() == []
    with path.open("ab") as file:
        file.write(line[20:] + b"{torn\n" + line)
    assert numbers(feed.read()) == [5, 5]


def test_file_of_a_killed_driver_is_removed_after_a_week(run, folder):
    CommitFeed(run)
    (old,) = folder.iterdir()
    os.utime(old, (time.time() - STALE_SECONDS - 60,) * 2)
    CommitFeed(str(uuid.uuid4()))
    assert not old.exists()


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o705])
def test_folder_that_others_can_open_is_refused_and_gets_no_report(run, folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    path = folder / f"commits-{run}.jsonl"
    path.touch()
    with pytest.raises(PermissionError, match="is not a private folder of this user"):
        CommitFeed(run)
    append(report(run))
    assert path.read_bytes() == b""


def test_folder_that_is_a_link_is_refused_and_gets_no_report(run, folder, tmp_path):
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    folder.symlink_to(target)
    path = target / f"commits-{run}.jsonl"
    path.touch()
    with pytest.raises(OSError, match="headrace-"):
        CommitFeed(run)
    append(report(run))
    assert path.read_bytes() == b""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("of_another", ["folder", "file"])
def test_file_or_folder_of_another_user_is_refused_and_gets_no_report(run, folder, of_another):
    folder.mkdir(mode=0o700)
    path = folder / f"commits-{run}.jsonl"
    path.touch()
    os.chown(folder if of_another == "folder" else path, 65534, 65534)
    with pytest.raises(PermissionError, match="of this user: remove it, or set TMPDIR"):
        CommitFeed(run)
    append(report(run))
    assert path.read_bytes() == b""


@pytest.mark.timeout(20)
@pytest.mark.parametrize("has_reader", [True, False])
def test_fifo_in_place_of_the_file_does_not_hold_up_a_commit(run, folder, has_reader):
    folder.mkdir(mode=0o700)
    path = folder / f"commits-{run}.jsonl"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if has_reader else None
    with pytest.raises(PermissionError, match="is not a regular file of this user"):
        CommitFeed(run)
    append(report(run))
    if reader is not None:
        assert os.read(reader, 1) == b""
        os.close(reader)


@pytest.mark.parametrize("is_dangling", [True, False])
def test_link_in_place_of_the_file_is_not_followed(run, folder, tmp_path, is_dangling):
    folder.mkdir(mode=0o700)
    target = tmp_path / "target"
    if not is_dangling:
        target.write_bytes(b"kept")
    (folder / f"commits-{run}.jsonl").symlink_to(target)
    with pytest.raises(OSError, match="commits-"):
        CommitFeed(run)
    append(report(run))
    assert target.read_bytes() == b"kept" if target.exists() else is_dangling


def test_commit_is_reported_to_the_feed_with_its_phases(run):
    feed = CommitFeed(run)
    reporter = commit_reporter(OPTIONS, "sink", "query", run)
    assert isinstance(reporter, CommitReporter)
    with reported(reporter, 3, []) as listener:
        listener.phase_started(CommitPhase.CHECK)
        listener.phase_started(CommitPhase.DECIDE)
        listener.phase_started(CommitPhase.END)
    with pytest.raises(RuntimeError), reported(reporter, 4, []):
        raise RuntimeError("the broker has gone")
    first, second = feed.read()
    assert (first.sink, first.query, first.topic, first.has_view) == ("sink", "query", "orders", False)
    assert [(batch.batch, batch.outcome) for batch in first.batches] == [(3, "committed")]
    assert first.batches[0].decide_ms > 0
    assert [(batch.batch, batch.outcome, batch.error) for batch in second.batches] == [
        (4, "failed", "the broker has gone")
    ]


def test_append_to_a_feed_does_not_delay_a_commit(run):
    CommitFeed(run)
    append(report(run))
    began = time.perf_counter()
    for number in range(200):
        assert commit_feed.is_wanted(run)
        append(report(run, number))
    assert (time.perf_counter() - began) / 200 < 0.002
