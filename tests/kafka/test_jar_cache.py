"""Kafka's jars are downloaded once, also with concurrent and after failed downloads."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.peers import maven

# Appends a line for each call, and writes a jar to the given path; with PART, an incomplete one, and fails.
FAKE_MAVEN = """#!/bin/sh
echo called >> "$CALLS"
for arg; do case "$arg" in -DoutputDirectory=*) folder="${arg#*=}";; esac; done
mkdir -p "$folder" && touch "$folder/part.jar"
test -z "$PART" || { echo "no route to the jars"; exit 1; }
touch "$folder/whole.jar"
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The calls of a Maven that downloads nothing."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("mvn", "java", "javac"):
        (programs / name).write_text(FAKE_MAVEN)
        (programs / name).chmod(0o755)
    monkeypatch.setattr(maven, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.delenv("PART", raising=False)
    return tmp_path / "calls"


def test_two_runs_at_once_fetch_the_jars_once(calls):
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(maven.kafka_jars, ["9.9.9"] * 4))
    (folder,) = folders
    assert sorted(path.name for path in folder.iterdir()) == ["part.jar", "whole.jar"]
    assert calls.read_text() == "called\n"


def test_an_interrupted_download_is_not_used(calls, monkeypatch):
    monkeypatch.setenv("PART", "yes")
    with pytest.raises(RuntimeError, match="no route to the jars"):
        maven.kafka_jars("9.9.9")
    assert not maven.jars_folder("9.9.9").exists()
    monkeypatch.delenv("PART")
    assert (maven.kafka_jars("9.9.9") / "whole.jar").exists()
    assert sorted(path.name for path in maven.CACHE.iterdir()) == ["kafka-9.9.9", "kafka.lock"]


@pytest.mark.parametrize("missing", ["mvn", "java", "javac"])
def test_without_java_or_maven_tests_are_skipped_but_fail_in_ci(missing, calls, monkeypatch):
    (calls.parent / "bin" / missing).unlink()
    monkeypatch.setenv("PATH", str(calls.parent / "bin"))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"no {missing} on the PATH"):
        maven.kafka_jars("9.9.9")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=f"no {missing} on the PATH"):
        maven.kafka_jars("9.9.9")
