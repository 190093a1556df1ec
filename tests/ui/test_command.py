"""The commands `headrace ui` and `headrace broker start --ui`."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.request

from tests.support.broker_commands import headrace, running
from tests.support.live_view import LiveView
from tests.support.waiting import eventually

FREE = "127.0.0.1:0"
RESPONSE_SECONDS_MAX = 20


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=RESPONSE_SECONDS_MAX) as response:
            return response.status == 200 and b"headrace" in response.read()
    except OSError:  # also a connection that is reset before its response
        return False


def view_of(process: subprocess.Popen[str]) -> str:
    """Return the URL in the second line that the broker prints."""
    assert process.stdout is not None
    return str(json.loads(process.stdout.readline())["ui"])


def test_broker_starts_and_stops_its_view(tmp_path):
    arguments = ("--listen", FREE, "--data-dir", tmp_path / "data", "--ui", FREE, "--format", "json")
    with running(*arguments, state=tmp_path) as (process, line):
        assert "bootstrap" in json.loads(line)
        url = view_of(process)
        assert is_up(url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(RESPONSE_SECONDS_MAX) == 0
        assert not is_up(url)


def test_the_view_of_a_broker_with_a_registry_shows_schemas(tmp_path):
    arguments = ("--listen", FREE, "--data-dir", tmp_path / "data", "--ui", FREE, "--format", "json")
    with running(*arguments, "--schema-registry", FREE, state=tmp_path) as (process, _):
        url = view_of(process).partition("?")[0].rstrip("/")
        with urllib.request.urlopen(f"{url}/topics/orders/schema", timeout=RESPONSE_SECONDS_MAX) as response:
            page = response.read()
        assert b"Schema of values" in page
        assert b"No schema registry is configured" not in page


def test_view_ends_with_a_killed_broker(tmp_path):
    arguments = ("--listen", FREE, "--data-dir", tmp_path / "data", "--ui", FREE, "--format", "json")
    with running(*arguments, state=tmp_path) as (process, _):
        url = view_of(process)
        assert is_up(url)
        process.kill()
        eventually("the end of the view", lambda: not is_up(url))


def test_view_stops_at_a_signal_and_names_an_address_in_use(broker):
    view = LiveView(broker.bootstrap)
    port = view.url.rpartition(":")[2]
    taken = headrace("ui", "-b", broker.bootstrap, "--listen", f"127.0.0.1:{port}")
    assert taken.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in taken.stderr
    assert "choose another port with --listen" in taken.stderr
    assert headrace("ui", "-b", broker.bootstrap, "--listen", "here").returncode == 2
    assert view.stop() == 0


def test_view_starts_without_a_broker():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with LiveView(f"127.0.0.1:{unused.getsockname()[1]}") as view:
            assert is_up(view.url)
