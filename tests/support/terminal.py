"""Run a command at a pseudo-terminal: its output, and key presses."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.waiting import eventually

ROWS, COLUMNS = 40, 120
SECONDS_MAX = 30
CTRL_C, CTRL_D = "\x03", "\x04"
_READ_BYTES = 65536
_LOOK_SECONDS = 0.02
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`headrace` as the only program of a pseudo-terminal."""

    def __init__(self, *arguments: object, environment: dict[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.raw = ""
        """All output, including escape sequences."""
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace", *map(str, arguments)],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
                preexec_fn=_take_terminal,  # makes Ctrl-C a signal
                env={**os.environ, "TERM": "xterm-256color", **(environment or {})},
            )
        finally:
            os.close(slave)

    @property
    def shown(self) -> str:
        return _CONTROL.sub("", self.raw)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def see(self, pattern: str, seconds_max: float = SECONDS_MAX) -> None:
        """Wait until the output matches a pattern."""
        deadline = time.monotonic() + seconds_max
        while not re.search(pattern, self.shown):
            if not self._read(deadline - time.monotonic()):
                raise TimeoutError(f"{pattern!r} was not shown; output: {self.shown[-2000:]!r}")

    def expect_prompt(self, pattern: str) -> None:
        """Wait for a prompt, and until the command reads the input.

        A key pressed in between is read later, but Ctrl-C, which is a signal, would be lost.
        """
        self.see(pattern)
        eventually("the command reads the input", self._is_asleep)

    def _is_asleep(self) -> bool:
        """Return whether it sleeps, twice in a row: a write to the terminal may sleep briefly too."""
        states = []
        for _ in range(2):
            time.sleep(_LOOK_SECONDS)
            states.append(Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0])
        return states == ["S", "S"]

    def end(self, seconds_max: float = SECONDS_MAX) -> int:
        """Wait until the command ends, and return its exit code."""
        deadline = time.monotonic() + seconds_max
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def _read(self, seconds: float) -> bool:
        """Read output; return False at the end, or if there is none within the time."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, seconds))
        if not ready:
            return False
        try:
            data = os.read(self._master, _READ_BYTES)
        except OSError:  # no process has the terminal open any more
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(SECONDS_MAX)
        os.close(self._master)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
