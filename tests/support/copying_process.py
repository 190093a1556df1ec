"""A `copying_worker` in a process: its lines, and signals to it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import eventually

END_SECONDS_MAX = 20


@dataclass(frozen=True, slots=True)
class Copying:
    """What workers have in common."""

    bootstrap: str
    group: str
    source: str
    target: str
    protocol: str = "classic"
    session_ms: int = 6_000
    log_folder: Path | None = None

    def start(self, worker: str, *flags: str, on_line: Callable[[str], object] = lambda line: None) -> CopyingProcess:
        command = [sys.executable, "-m", "tests.support.copying_worker", "--worker", worker, *flags]
        command += ["--bootstrap", self.bootstrap, "--group", self.group, "--source", self.source]
        command += ["--target", self.target, "--protocol", self.protocol, "--session-ms", str(self.session_ms)]
        log = None if self.log_folder is None else self.log_folder / f"{worker}.log"
        return CopyingProcess(worker, command, on_line, log)


class CopyingProcess:
    """A running worker."""

    def __init__(self, name: str, command: list[str], on_line: Callable[[str], object], log: Path | None) -> None:
        self.name = name
        self.lines: list[str] = []
        self._on_line = on_line
        with contextlib.nullcontext() if log is None else log.open("a") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                break  # it was killed while it printed
            self.lines.append(line.rstrip("\n"))
            self._on_line(self.lines[-1])

    def count(self, word: str) -> int:
        """Return how many lines begin with a word."""
        return sum(1 for line in self.lines if line.startswith(word))

    def wait_for(self, word: str, seconds_max: float) -> None:
        """Wait for a line that begins with a word."""
        eventually(
            f"{self.name}: {word}; so far: {self.lines}", lambda: self.count(word) or self.has_ended, seconds_max
        )
        assert self.count(word), f"{self.name} has ended: {self.lines}"

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def send_line(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once; a paused one, too."""
        self._process.kill()
        self._process.wait(END_SECONDS_MAX)
        self._reading.join(END_SECONDS_MAX)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
