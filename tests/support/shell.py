"""Run `headrace` in a subprocess: pipes, signals, and a separate state folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS_MAX = 40
HEADRACE = (sys.executable, "-m", "headrace")


def environment(state: Path | None = None, **more: str) -> dict[str, str]:
    """Return this environment without HEADRACE_* settings; with `state` as the state folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    if "HEADRACE_KERNEL" in os.environ:
        kept["HEADRACE_KERNEL"] = os.environ["HEADRACE_KERNEL"]
    return {**kept, **({} if state is None else {"XDG_STATE_HOME": str(state)}), **more}


def run(
    *arguments: object, stdin: bytes = b"", state: Path | None = None, **more: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command until it ends."""
    return subprocess.run(
        [*HEADRACE, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        timeout=SECONDS_MAX,
        env=environment(state, **more),
    )


def begin(*arguments: object, state: Path | None = None) -> Any:
    """Start a command with pipes; the caller ends it. Returns a Popen."""
    return subprocess.Popen(
        [*HEADRACE, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(state),
    )


def pipe(script: str, *, state: Path | None = None, **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of shell in which `headrace` is this installation."""
    headrace = f'headrace() {{ "{sys.executable}" -m headrace "$@"; }}; set -o pipefail; '
    return subprocess.run(
        ["bash", "-c", headrace + script], capture_output=True, timeout=SECONDS_MAX, env=environment(state, **more)
    )
