"""Whether a broker that starts still has all that it had.

kill -9 loses nothing: what was written is with the system. A power cut loses what was not on disk yet. They are told
apart by the id that the system gets at every boot: if it is another one than when the broker ran last, and the broker
was not stopped in good order, its logs may be shorter than the controller believes.

The epoch and the boot id of a run are kept in two files, each with a checksum: damage to one of them does not make a
broker count as one that has lost data.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from pathlib import Path
from typing import NamedTuple

from headrace.broker.cluster.cluster import NO_EPOCH
from headrace.broker.log.manager import CLEAN_STOP

log = logging.getLogger("headrace.broker")

FILE_NAME = "cluster.json"
COPY_NAME = "cluster.json.copy"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Run(NamedTuple):
    epoch: int
    boot_id: str


def previous_epoch(folder: Path) -> int:
    """Return the broker epoch of the last run if its data can be trusted, else -1; before the logs are opened.

    Opening the logs removes the mark of a clean stop. What it proves is noted with this boot's id before, for the case
    that this run is killed before it has an epoch of its own.
    """
    run = max(_read(folder / FILE_NAME), _read(folder / COPY_NAME))
    if run.boot_id != "" and run.boot_id == _boot_id():
        return run.epoch
    if run.epoch == NO_EPOCH or not (folder / CLEAN_STOP).exists():
        return NO_EPOCH
    keep_epoch(folder, run.epoch)
    return run.epoch


def keep_epoch(folder: Path, epoch: int) -> None:
    """Note the epoch of this run."""
    run = _Run(epoch, _boot_id())
    for name in (FILE_NAME, COPY_NAME):
        partial = folder / f"{name}.partial"
        with open(partial, "w") as file:
            json.dump({**run._asdict(), "checksum": _checksum(run)}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / name)


def _read(path: Path) -> _Run:
    """Return the run that a file tells of; one with epoch -1 if there is none, or the file is damaged."""
    try:
        kept = json.loads(path.read_text())
        run = _Run(int(kept["epoch"]), str(kept["boot_id"]))
        if kept.get("checksum", _checksum(run)) != _checksum(run):  # earlier versions have none
            raise ValueError("its checksum does not match")
        return run
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.error(
            "%s is damaged: %s. Without a copy of it this broker counts as one that may have lost data, and is in sync "
            "again when it has caught up",
            path,
            error,
        )
    return _Run(NO_EPOCH, "")


def _checksum(run: _Run) -> int:
    return zlib.crc32(f"{run.epoch} {run.boot_id}".encode())


def _boot_id() -> str:
    """Empty where the system has none: then it is never the same."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
