"""Kafka Streams: the word count in tests/either/clients/streams, as a process that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.support.peers import fetched, maven
from tests.support.peers.java import JavaRunner
from tests.support.peers.real_kafka import GUARD

VERSION = "4.3.0"
SOURCE = Path(__file__).parents[2] / "either" / "clients" / "streams" / "WordCount.java"
STOP_SECONDS_MAX = 10
_DEPENDENCIES = f"""\
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-streams</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
"""


def jars() -> Path:
    """Return the folder with the jars; without Java or Maven the test is skipped."""
    fetched.require("java", "javac", purpose="tests with Kafka Streams")
    return fetched.fetched(_name(), lambda folder: maven.copy_jars(f"Kafka Streams {VERSION}", _DEPENDENCIES, folder))


def is_fetched() -> bool:
    return (fetched.CACHE / _name()).exists()


def _name() -> str:
    return f"streams-{VERSION}"


class WordCount:
    """The program: it is started and killed any number of times, and keeps its state in `folder`."""

    def __init__(self, java: JavaRunner, folder: Path, *arguments: str) -> None:
        self._command = java.command(jars(), SOURCE, *arguments, folder / "state")
        self._output = folder / "output.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*GUARD, *self._command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group, which is killed as a whole
            )

    def kill(self) -> None:
        """Kill the process with SIGKILL. It must still be running."""
        process, self._process = self._process, None
        if process is None:
            return
        ended = process.poll()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS_MAX)
        assert process.stdin is not None
        process.stdin.close()
        assert ended is None, f"the word count ended with {ended}:\n{self.output()[-4000:]}"

    def output(self) -> str:
        """Return what it has printed, over all starts."""
        return self._output.read_text(errors="replace")
