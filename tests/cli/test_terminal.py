"""headrace at a terminal: progress bars, tables, confirmation, Ctrl-C."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from headrace.cli.broker_control import is_alive
from tests.support.cli_runner import facts, run_cli
from tests.support.terminal import CTRL_C, CTRL_D, Terminal
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

INTERRUPTED = 130
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


@pytest.fixture
def state(tmp_path):
    """A state folder on which no broker runs."""
    return {"XDG_STATE_HOME": str(tmp_path)}


def run_file(state):
    return Path(state["XDG_STATE_HOME"]) / "headrace" / "broker" / "broker.json"


def test_a_bar_shows_the_progress_of_a_file_and_ctrl_c_ends_it(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"{number:099d}\n" for number in range(200_000)))
    with EmbeddedBroker() as broker:
        broker.faults.inject(api="Produce", delay_ms=200)  # makes it slow enough to see
        small = ("-X", "buffer.memory=131072", "-X", "batch.size=16384", "-X", "linger.ms=0")
        with Terminal("produce", "slow", file, "-b", broker.bootstrap, *small) as terminal:
            terminal.see(r"[1-9]\d*% +[1-9][\d,]* records")
            assert HIDE_CURSOR in terminal.raw
            terminal.press(CTRL_C)
            assert terminal.end() == INTERRUPTED
        assert terminal.raw.rindex(SHOW_CURSOR) > terminal.raw.rindex(HIDE_CURSOR)
        assert "Traceback" not in terminal.shown


def test_typed_lines_are_sent_and_the_started_broker_stops(state):
    with Terminal("produce", "typed", environment=state) as terminal:
        terminal.see("started one for this command")
        pid = json.loads(run_file(state).read_text())["pid"]
        terminal.press("hello\nthere\n" + CTRL_D)
        assert terminal.end() == 0
    assert not run_file(state).exists()
    eventually("the end of the broker", lambda: not is_alive(pid))
    with Terminal("consume", "typed", environment=state) as terminal:
        assert terminal.end() == 0
    assert "hello\r\nthere\r\n" in terminal.shown


def test_ctrl_c_stops_the_started_broker(state):
    with Terminal("produce", "typed", environment=state) as terminal:
        terminal.see("started one for this command")
        pid = json.loads(run_file(state).read_text())["pid"]
        terminal.press("hello\n")
        terminal.expect_prompt("hello")
        terminal.press(CTRL_C)
        assert terminal.end() == INTERRUPTED
    eventually("the end of the broker", lambda: not is_alive(pid))
    assert not run_file(state).exists()
    assert "Traceback" not in terminal.shown


def test_deleting_asks_for_confirmation(headrace_broker):
    topic, group = new_topic(headrace_broker, "prompt"), unique("prompt")
    at = ("-b", headrace_broker.bootstrap)
    facts("group", "reset", group, "--to", "latest", "--topic", topic, "--yes", *at)
    for response, left in (("n\n", True), ("y\n", False)):
        with Terminal("group", "delete", group, *at) as terminal:
            terminal.expect_prompt(r"Delete group .*\? \[y/N\]")
            terminal.press(response)
            terminal.end()
        assert (run_cli("group", "describe", group, *at).exit_code == 0) is left


def test_a_reset_shows_the_changes_and_prompts(headrace_broker):
    topic, group = new_topic(headrace_broker, "prompt"), unique("prompt")
    at = ("-b", headrace_broker.bootstrap)
    with Terminal("group", "reset", group, "--to", "earliest", "--topic", topic, *at) as terminal:
        terminal.expect_prompt(r"Set these offsets of group .*\? \[y/N\]")
        assert "PARTITION" in terminal.shown
        terminal.press(CTRL_C)
        assert terminal.end() == INTERRUPTED
    assert run_cli("group", "describe", group, *at).exit_code == 3


def test_doctor_uses_colors_only_at_a_terminal(state):
    with Terminal("doctor", environment=state) as terminal:
        assert terminal.end() == 0
    assert "\x1b[32mok" in terminal.raw
    assert "\x1b[" not in run_cli("doctor", **state).output


def test_tables_are_styled_at_a_terminal_and_plain_elsewhere(headrace_broker):
    topic, at = new_topic(headrace_broker, "table", partitions=2), ("-b", headrace_broker.bootstrap)
    with Terminal("topic", "describe", topic, *at) as terminal:
        assert terminal.end() == 0
    plain = run_cli("topic", "describe", topic, *at).stdout
    assert "\x1b[1mPARTITION" in terminal.raw
    assert "\x1b[" not in plain
    assert [line.split() for line in terminal.shown.splitlines()] == [line.split() for line in plain.splitlines()]
