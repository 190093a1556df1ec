"""Run `headrace broker` in a subprocess."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

COMMAND_SECONDS_MAX = 30


def headrace(*arguments: object, state: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "headrace", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        env=environment(state),
    )


def environment(state: Path | None) -> Mapping[str, str]:
    return os.environ if state is None else {**os.environ, "XDG_STATE_HOME": str(state)}


@contextmanager
def running(*arguments: object, state: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a process that runs `broker start`, and its ready line."""
    command = [sys.executable, "-m", "headrace", "broker", "start", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(state)
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()
