"""`headrace ui`, and the view beside a broker: `headrace broker start --ui`."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.request
from urllib.error import URLError

from broker_commands import headrace, running
from live_view import LiveView
from waiting import eventually

FREE = "127.0.0.1:0"
ANSWER_SECONDS_MAX = 20


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as answer:
            return answer.status == 200 and b"headrace" in answer.read()
    except URLError:
        return False


def view_of(process: subprocess.Popen[str]) -> str:
    """The address that the broker's second line tells."""
    assert process.stdout is not None
    return str(json.loads(process.stdout.readline())["ui"])


def test_a_broker_brings_its_view_along_and_takes_it_away(tmp_path):
    arguments = ("--listen", FREE, "--data-dir", tmp_path / "data", "--ui", FREE, "--format", "json")
    with running(*arguments, state=tmp_path) as (process, line):
        assert "bootstrap" in json.loads(line)
        url = view_of(process)
        assert is_up(url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(ANSWER_SECONDS_MAX) == 0
        assert not is_up(url)


def test_the_view_of_a_broker_that_is_killed_ends_too(tmp_path):
    arguments = ("--listen", FREE, "--data-dir", tmp_path / "data", "--ui", FREE, "--format", "json")
    with running(*arguments, state=tmp_path) as (process, _):
        url = view_of(process)
        assert is_up(url)
        process.kill()
        eventually("the end of the view", lambda: not is_up(url))


def test_a_view_stops_at_a_signal_and_says_what_is_wrong_with_its_address(broker):
    view = LiveView(broker.bootstrap)
    port = view.url.rpartition(":")[2]
    taken = headrace("ui", "-b", broker.bootstrap, "--listen", f"127.0.0.1:{port}")
    assert taken.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in taken.stderr
    assert "choose another port with --listen" in taken.stderr
    assert headrace("ui", "-b", broker.bootstrap, "--listen", "here").returncode == 2
    assert view.stop() == 0


def test_a_view_of_nobody_starts_all_the_same():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with LiveView(f"127.0.0.1:{unused.getsockname()[1]}") as view:
            assert is_up(view.url)
