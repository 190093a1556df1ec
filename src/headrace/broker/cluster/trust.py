"""Whether a broker that starts still has all that it had.

kill -9 loses nothing: what was written is with the system. A power cut loses what was not on disk yet. They are told
apart by the id that the system gets at every boot: if it is another one than when the broker ran last, and the broker
was not stopped in good order, its logs may be shorter than the controller believes.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from headrace.broker.cluster.cluster import NO_EPOCH
from headrace.broker.log.manager import CLEAN_STOP

log = logging.getLogger("headrace.broker")

FILE_NAME = "cluster.json"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def previous_epoch(folder: Path) -> int:
    """The broker epoch of the last run if its data can be trusted, else -1. To be asked before the logs are opened."""
    try:
        kept = json.loads((folder / FILE_NAME).read_text())
        epoch, boot_id = int(kept["epoch"]), str(kept["boot_id"])
    except FileNotFoundError:
        return NO_EPOCH
    except (OSError, ValueError, KeyError, TypeError) as error:
        path = folder / FILE_NAME
        log.warning("%s is damaged and not used: %r; this broker joins as one that may have lost data", path, error)
        return NO_EPOCH
    trusted = (folder / CLEAN_STOP).exists() or (boot_id != "" and boot_id == _boot_id())
    return epoch if trusted else NO_EPOCH


def keep_epoch(folder: Path, epoch: int) -> None:
    """Note the epoch of this run."""
    partial = folder / f"{FILE_NAME}.partial"
    with open(partial, "w") as file:
        json.dump({"epoch": epoch, "boot_id": _boot_id()}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / FILE_NAME)


def _boot_id() -> str:
    """Empty where the system has none: then it is never the same."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
