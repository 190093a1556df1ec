"""headrace demo with few rows: real Spark, real broker, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from headrace import Producer
from headrace.client.admin import AdminClient
from headrace.demo.driver_process import all_processes
from tests.support.waiting import eventually

pytest.importorskip("pyspark")

ROWS = 20_000
DEMO_SECONDS_MAX = 240
STOP_SECONDS_MAX = 20
TOPIC = "headrace-demo-"
NO_BROKER, EXIT_STOPPED = 3, 130

pytestmark = [pytest.mark.slow, pytest.mark.timeout(DEMO_SECONDS_MAX + 30)]


class RunningDemo:
    """The demo in a separate process, with its temporary files in a folder of the test."""

    def __init__(self, folder, *arguments):
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.report = folder / "reports" / "demo.html"
        command = [sys.executable, "-m", "headrace", "demo", "--rows", str(ROWS), "--report", str(self.report)]
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(self.temporary)},
        )
        self.stderr = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr += line

    def end(self, seconds_max=DEMO_SECONDS_MAX):
        """Wait for the end, and return its stdout."""
        assert self.process.stdout is not None
        try:
            self.process.wait(seconds_max)
            self._reader.join(seconds_max)
            return self.process.stdout.read()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended after {seconds_max} s; its stderr:\n{self.stderr}") from None
        finally:
            self.process.kill()

    def leftovers(self):
        """Return files and processes that should be gone."""
        mark = str(self.temporary)
        return [*self.temporary.iterdir()] + [process for process in all_processes() if mark in process.command]


@pytest.fixture
def demo(tmp_path):
    started = []

    def start(*arguments):
        started.append(RunningDemo(tmp_path, *arguments))
        return started[-1]

    yield start
    for run in started:
        run.process.kill()
        run.process.communicate()


def test_every_row_once_while_a_worker_the_driver_and_the_broker_are_killed(demo):
    run = demo("--format", "json")
    printed = run.end()
    assert run.process.returncode == 0, run.stderr
    facts = json.loads(printed)
    assert (facts["equal"], facts["rows_in"], facts["rows_visible"]) == (True, ROWS, ROWS)
    assert (facts["lost"], facts["duplicated"], facts["out_of_order"]) == (0, 0, 0)
    assert [kill["what"] for kill in facts["kills"]] == ["worker", "driver", "broker"]
    assert len({kill["pid"] for kill in facts["kills"]}) == 3
    assert all(kill["back_s"] > 0 for kill in facts["kills"])
    assert "was repeated" in facts["kills"][0]["note"]
    assert all(kill["open_records"] > 0 for kill in facts["kills"][1:])
    assert facts["commit_ms"]["p95"] >= facts["commit_ms"]["p50"] > 0
    text = run.report.read_text()
    assert f"Every row once: {ROWS:,} of {ROWS:,}" in text
    assert run.leftovers() == []


@pytest.mark.slow
def test_a_foreign_record_in_a_users_cluster_is_found_and_topics_deleted(demo, headrace_broker):
    run = demo("-b", headrace_broker.bootstrap)
    with (
        AdminClient(headrace_broker.bootstrap) as admin,
        Producer(bootstrap_servers=headrace_broker.bootstrap) as other,
    ):
        (topic,) = eventually("the topic", lambda: topics(admin, "-decisions"), DEMO_SECONDS_MAX)
        other.send(topic, b"not an order").result(STOP_SECONDS_MAX)
        printed = run.end()
        assert run.process.returncode == 1, run.stderr
        assert "source and topic differ" in printed
        assert "not killed: it does not belong to the demo" in printed
        eventually("the end of the topics", lambda: not topics(admin))
    assert headrace_broker.embedded.is_running
    assert run.leftovers() == []


def topics(admin, without="none"):
    return [name for name in admin.list_topics() if name.startswith(TOPIC) and not name.endswith(without)]


def test_ctrl_c_ends_all_processes_and_removes_all_files(demo):
    run = demo("--format", "json")
    eventually("rows", lambda: "rows visible" in run.stderr or run.process.poll() is not None, DEMO_SECONDS_MAX)
    run.process.send_signal(signal.SIGINT)
    assert run.end(STOP_SECONDS_MAX) == ""
    assert run.process.returncode == EXIT_STOPPED
    assert "all processes and files are removed" in run.stderr
    assert run.leftovers() == []
    assert not run.report.exists()


def test_a_second_signal_ends_the_demo_at_once(demo):
    run = demo("--format", "json")
    eventually("Spark", lambda: "starting Spark" in run.stderr or run.process.poll() is not None, DEMO_SECONDS_MAX)
    run.process.send_signal(signal.SIGTERM)
    run.process.send_signal(signal.SIGTERM)
    run.end(STOP_SECONDS_MAX)
    assert run.process.returncode in (128 + signal.SIGTERM, EXIT_STOPPED)  # it may stop before the second signal
    eventually("no leftovers", lambda: not run.leftovers())


def test_an_unreachable_cluster_is_reported_at_once(demo):
    run = demo("-b", "127.0.0.1:1")
    run.end(STOP_SECONDS_MAX)
    assert run.process.returncode == NO_BROKER
    assert "127.0.0.1:1" in run.stderr
    assert "Traceback" not in run.stderr
    assert run.leftovers() == []
