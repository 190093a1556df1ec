"""A broker in a process of its own.

    python -m headrace.broker.main    one line of JSON on standard input says what to start: see `EmbeddedBroker`
    headrace broker start             for people, in cli/broker_start.py; the same `run`

A process that another one started for itself (`EmbeddedBroker`) keeps reading its standard input: the end of it is the
end of the other one, however that came about, and then it stops as well and leaves nothing behind.

Nothing here imports what a broker at rest does not need: the time from the start of the process to the ready line is
part of what a user sees.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.broker.broker_options import data_folder, resolve
from headrace.broker.control import Ready
from headrace.broker.service import Service
from headrace.config import Config
from headrace.errors import ConfigError, HeadraceError

EXIT_STOPPED = 0
EXIT_FAILED = 1
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
SETTINGS_BYTES_MAX = 1024 * 1024
_SIGNALLED = 128  # what shells add to the number of the signal that ended a process
_GUARD_READ_BYTES = 4096


def run(config: Config, announce: Callable[[Ready], None], *, guard_fd: int | None = None) -> None:
    """Run a broker until it is told to stop: by a signal, by its control socket, or by the end of `guard_fd`.

    Raises if it cannot start. A second signal ends the process at once.
    """
    raise_open_files_limit()
    asyncio.run(_run(config, announce, guard_fd))


async def _run(config: Config, announce: Callable[[Ready], None], guard_fd: int | None) -> None:
    service = Service(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, service, number)
    ready = await service.start()
    if guard_fd is not None:
        loop.add_reader(guard_fd, _on_guard, service, guard_fd)
    # What is there now stays: no collection has to walk through it again.
    gc.collect()
    gc.freeze()
    announce(ready)
    await service.stopping.wait()
    if guard_fd is not None:
        loop.remove_reader(guard_fd)
    await service.stop()


def _on_signal(service: Service, number: signal.Signals) -> None:
    if service.stopping.is_set():
        os._exit(_SIGNALLED + number)
    service.stopping.set()


def _on_guard(service: Service, guard_fd: int) -> None:
    """Whoever wrote the settings has gone if there is no more to read."""
    if not os.read(guard_fd, _GUARD_READ_BYTES):
        asyncio.get_running_loop().remove_reader(guard_fd)
        service.stopping.set()


def raise_open_files_limit() -> None:
    """A connection and a segment are a file each: take as many as the system lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems say "unlimited" and mean less
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """The process of an `EmbeddedBroker`."""
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT)  # to the standard error
    guard_fd = sys.stdin.fileno()
    folder: Path | None = None
    try:
        settings = _read_settings(guard_fd)
        config = resolve(("argument", settings["options"]))
        folder = data_folder(config) if settings["remove_data_dir"] else None
        run(config, lambda ready: _print({"ready": ready.to_json()}), guard_fd=guard_fd)
    except HeadraceError as error:
        _print({"error": {"kind": type(error).__name__, "message": str(error)}})
        return EXIT_FAILED
    finally:
        # Removed by who made it, if that is still there: it may want to start a broker on it again.
        if folder is not None and _has_ended(guard_fd):
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
    return EXIT_STOPPED


def _read_settings(fd: int) -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        if len(line) > SETTINGS_BYTES_MAX or not (more := os.read(fd, SETTINGS_BYTES_MAX)):
            raise ConfigError("expected the settings as a line of JSON on the standard input")
        line += more
    settings: dict[str, Any] = json.loads(line)
    return settings


def _has_ended(fd: int) -> bool:
    """Whether the other end of a pipe is closed."""
    os.set_blocking(fd, False)
    try:
        return not os.read(fd, _GUARD_READ_BYTES)
    except BlockingIOError:
        return False


def _print(line: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # nobody is left to read it
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
