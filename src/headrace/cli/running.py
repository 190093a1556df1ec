"""The broker that runs on a data folder: finding it, and asking it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from headrace.broker import control
from headrace.cli.output import NotRunningError
from headrace.errors import ConnectionFailedError


def default_data_dir() -> Path:
    """Where a broker keeps its data if it is not told: in the state folder of the user (XDG)."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "headrace" / "broker"


data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the broker's data. [default: $XDG_STATE_HOME/headrace/broker]",
)


def call(data_dir: Path | None, op: str, **arguments: Any) -> Any:
    """An operation of the broker that runs on a data folder."""
    folder = (data_dir or default_data_dir()).absolute()
    facts = control.read_run_file(folder)
    if facts is not None:
        try:
            return control.call(facts["control"], op, **arguments)
        except ConnectionFailedError:
            if is_alive(int(facts["pid"])):
                raise
    hint = "" if data_dir else "; --data-dir names another folder"
    raise NotRunningError(f"no broker runs on {folder}{hint}. `headrace broker start` starts one.")


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is still to be fetched by its parent does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:  # another user's, or a system without /proc
        return True
