"""Client programs in other languages: a process for the whole run that takes commands and replies.

    test    → {"do": "produce", "bootstrap": "127.0.0.1:9092", …}      one line of JSON on its standard input
    program → {"offsets": [0, 1, 2]}   or   {"error": "the cause"}     one line on its standard output

It ends when its standard input is closed, also if the test run is killed. Errors include its standard error. A command
that times out kills the process; the next command starts another.
"""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

RESPONSE_SECONDS_MAX = 50
END_SECONDS_MAX = 5
_SAID_BYTES_MAX = 6000


class ProgramError(Exception):
    """An error of a client program."""


class Program:
    """A command line that is started with the first command."""

    def __init__(self, name: str, command: Callable[[], list[str]], env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._command = command
        self._env = env
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as we do

    def __call__(self, do: str, *, seconds_max: float = RESPONSE_SECONDS_MAX, **arguments: Any) -> Any:
        """Return the reply to a command."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"do": do, "seconds_max": seconds_max, **arguments}) + "\n")
            process.stdin.flush()
            line = self._lines.get(timeout=seconds_max)
        except (queue.Empty, OSError) as error:
            reason = "no response" if isinstance(error, queue.Empty) else str(error)
            raise self._failure(f"{do}: {reason} after {seconds_max} s") from None
        if not line:
            raise self._failure(f"{do}: it ended")
        response = json.loads(line)
        if isinstance(response, dict) and "error" in response:
            raise ProgramError(f"{self.name}: {do}: {response['error']}")
        return response

    def close(self) -> None:
        """Stop the process, cleanly if possible."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_SECONDS_MAX)

    def _start(self) -> subprocess.Popen[str]:
        self._lines = queue.Queue()
        self._process = process = subprocess.Popen(
            self._command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            encoding="utf-8",
            env=self._env,
        )
        threading.Thread(target=_read, args=(process, self._lines), daemon=True).start()
        return process

    def _failure(self, reason: str) -> ProgramError:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(END_SECONDS_MAX)
        self._said.seek(0)
        output = self._said.read()[-_SAID_BYTES_MAX:].decode(errors="replace")
        return ProgramError(f"{self.name}: {reason}; it said:\n{output}")


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")
