"""`headrace …` in a process of its own: pipes, signals, and a state folder that is not the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS_MAX = 40
HEADRACE = (sys.executable, "-m", "headrace")


def environment(state: Path | None = None, **more: str) -> dict[str, str]:
    """Ours, without settings that a developer may have; with `state`, data go there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    if "HEADRACE_KERNEL" in os.environ:
        kept["HEADRACE_KERNEL"] = os.environ["HEADRACE_KERNEL"]
    return {**kept, **({} if state is None else {"XDG_STATE_HOME": str(state)}), **more}


def run(
    *arguments: object, stdin: bytes = b"", state: Path | None = None, **more: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end."""
    return subprocess.run(
        [*HEADRACE, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        timeout=SECONDS_MAX,
        env=environment(state, **more),
    )


def begin(*arguments: object, state: Path | None = None) -> Any:
    """Begin a command, with pipes to it; it is for who began it to end it. A Popen, whose pipes are all there."""
    return subprocess.Popen(
        [*HEADRACE, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(state),
    )


def pipe(script: str, *, state: Path | None = None, **more: str) -> subprocess.CompletedProcess[bytes]:
    """A line of shell, in which `headrace` is this one."""
    headrace = f'headrace() {{ "{sys.executable}" -m headrace "$@"; }}; set -o pipefail; '
    return subprocess.run(
        ["bash", "-c", headrace + script], capture_output=True, timeout=SECONDS_MAX, env=environment(state, **more)
    )
