"""The programs that run clients in other languages: how they are installed, and how failures are handled."""

from __future__ import annotations

import sys

import pytest

from tests.support.peers import fetched
from tests.support.peers.franz_go import make_franz_go
from tests.support.peers.kafkajs import make_kafkajs
from tests.support.peers.program import Program, ProgramError
from tests.support.peers.spark_connector import make_spark_connector

# Echoes each command, except the commands to be silent or to exit.
ECHO = """
import sys, json, time
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "hang":
        time.sleep(60)
    if command["do"] == "end":
        sys.exit("that was all")
    if command["do"] == "fail":
        command = {"error": "no luck"}
    print(json.dumps(command), flush=True)
"""


@pytest.fixture
def echo():
    program = Program("echo", lambda: [sys.executable, "-c", ECHO])
    yield program
    program.close()


def test_a_program_responds_to_each_command(echo):
    assert [echo("say", n=n)["n"] for n in range(3)] == [0, 1, 2]
    with pytest.raises(ProgramError, match="echo: fail: no luck"):
        echo("fail")
    assert echo("say", n=3)["n"] == 3


@pytest.mark.parametrize(
    ("how", "reason"), [("hang", "no response after 0.5 s"), ("end", "(?s)it ended.*that was all")]
)
def test_a_program_without_a_response_is_killed_and_restarted(echo, how, reason):
    with pytest.raises(ProgramError, match=reason):
        echo(how, seconds_max=0.5 if how == "hang" else 30)
    assert echo("say", n=1)["n"] == 1


@pytest.mark.parametrize(
    ("make", "missing"), [(make_kafkajs, "node"), (make_franz_go, "go"), (make_spark_connector, "java")]
)
def test_without_its_tools_a_client_is_skipped_but_fails_in_ci(make, missing, monkeypatch, tmp_path):
    monkeypatch.setattr(fetched, "CACHE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"no {missing} on the PATH"):
        make()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=f"no {missing} on the PATH"):
        make()
