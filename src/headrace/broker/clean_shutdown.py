"""Whether a broker still has all its data when it starts: its last epoch, kept on disk.

kill -9 loses nothing, because written data are in the page cache. A power cut loses what was not synced. The boot id of
the system tells them apart: if it has changed since the last run and the broker was not stopped cleanly, its logs may
be shorter than the controller assumes.

The epoch and the boot id of a run are kept in two files, each with a checksum, so that damage to one of them does not
make the broker count as one that lost data.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from pathlib import Path
from typing import NamedTuple

from headrace.broker.catalog.cluster import NO_EPOCH
from headrace.broker.log.manager import CLEAN_STOP

log = logging.getLogger("headrace.broker")

FILE_NAME = "cluster.json"
COPY_NAME = "cluster.json.copy"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Run(NamedTuple):
    epoch: int
    boot_id: str


def previous_epoch(folder: Path) -> int:
    """Return the broker epoch of the last run if its data are complete, otherwise -1. Call it before opening the logs.

    Opening the logs removes the clean-stop marker. The epoch is therefore saved with the current boot id first, in case
    this run is killed before it registers.
    """
    run = max(_read(folder / FILE_NAME), _read(folder / COPY_NAME))
    if run.boot_id != "" and run.boot_id == _boot_id():
        return run.epoch
    if run.epoch == NO_EPOCH or not (folder / CLEAN_STOP).exists():
        return NO_EPOCH
    save_epoch(folder, run.epoch)
    return run.epoch


def save_epoch(folder: Path, epoch: int) -> None:
    """Save the epoch of this run."""
    run = _Run(epoch, _boot_id())
    for name in (FILE_NAME, COPY_NAME):
        partial = folder / f"{name}.partial"
        with open(partial, "w") as file:
            json.dump({"epoch": run.epoch, "boot_id": run.boot_id, "checksum": _checksum(run)}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / name)


def _read(path: Path) -> _Run:
    """Return the run in a file; epoch -1 if the file is missing or damaged."""
    try:
        saved = json.loads(path.read_text())
        run = _Run(int(saved["epoch"]), str(saved["boot_id"]))
        if saved.get("checksum", _checksum(run)) != _checksum(run):  # missing in earlier versions
            raise ValueError("its checksum does not match")
        return run
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.error(
            "%s is damaged: %s. Unless its copy is intact, this broker counts as one that may have lost data until its "
            "replicas have caught up",
            path,
            error,
        )
    return _Run(NO_EPOCH, "")


def _checksum(run: _Run) -> int:
    return zlib.crc32(f"{run.epoch} {run.boot_id}".encode())


def _boot_id() -> str:
    """Return the boot id; empty if the system has none, which never equals that of the last run."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
