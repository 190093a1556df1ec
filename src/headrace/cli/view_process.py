"""The live view beside something else that runs: `headrace broker start --ui`, `headrace demo --ui`.

It is a process of its own, so that a broker's event loop has nothing to do with it; and it ends with who started it,
however that ends: the end of its standard input is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import click

from headrace.broker.runners import child_environment, read_line
from headrace.errors import IllegalStateError

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 8.0


class ViewProcess:
    """A view that ends with us."""

    def __init__(
        self, listen: str, bootstrap: str, data_dir: Path | None, variables: Mapping[str, str] | None = None
    ) -> None:
        """`variables` of the environment are how options of clients get there: nobody can look at those."""
        folder = () if data_dir is None else ("--data-dir", str(data_dir))
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "headrace", "ui", "-b", bootstrap, "--listen", listen, *folder),
                *("--until-stdin-closes", "--format", "json"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**child_environment(), **(variables or {})},
        )

    def url(self) -> str:
        """The address to open, once it answers. What went wrong, it has said itself on the standard error."""
        assert self._process.stdout is not None
        line = read_line(self._process.stdout.fileno(), START_SECONDS_MAX)
        if not line:
            why = "has ended" if line is not None else f"was not ready in {START_SECONDS_MAX:g} s"
            raise IllegalStateError(f"the live view {why}; `headrace ui` starts one for a cluster that runs")
        return str(json.loads(line)["login_url"])

    def tell_later(self, tell: Callable[[str], None]) -> None:
        """Tell the address when there is one, from a thread: who asks may have better things to do."""

        def wait() -> None:
            try:
                tell(self.url())
            except IllegalStateError as error:
                click.echo(f"warning: {error}", err=True)

        threading.Thread(target=wait, name="headrace-view", daemon=True).start()

    def close(self) -> None:
        """End it, and wait for that, for a while."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
