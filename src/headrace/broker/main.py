"""The process of a broker.

    python -m headrace.broker.main    reads what to start from one line of JSON on standard input: see `EmbeddedBroker`
    headrace broker start             in cli/broker_start.py; calls the same `run`

The process of an `EmbeddedBroker` keeps reading its standard input. When that ends, the parent process has ended, for
any reason; the broker then stops and removes its data.

Imports are kept to a minimum here, because users wait for the start of the process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.broker.broker_options import data_folder, resolve
from headrace.broker.control import RunningBroker
from headrace.broker.service import Service
from headrace.config import Config
from headrace.errors import ConfigError, HeadraceError

EXIT_STOPPED = 0
EXIT_FAILED = 1
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
SETTINGS_BYTES_MAX = 1024 * 1024
_SIGNALLED = 128  # shells add this to the number of the signal
_GUARD_READ_BYTES = 4096


def run(config: Config, announce: Callable[[RunningBroker], None], *, guard_fd: int | None = None) -> None:
    """Run a broker until it is stopped by a signal, its control socket, or the end of `guard_fd`.

    Raises if it cannot start. A second signal exits at once.
    """
    raise_open_files_limit()
    asyncio.run(_run(config, announce, guard_fd))


async def _run(config: Config, announce: Callable[[RunningBroker], None], guard_fd: int | None) -> None:
    service = Service(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, service, number)
    ready = await service.start()
    if guard_fd is not None:
        loop.add_reader(guard_fd, _on_guard, service, guard_fd)
    gc.freeze()  # exclude the objects that exist now from later garbage collections
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
    """Stop when the parent process has closed the pipe."""
    if not os.read(guard_fd, _GUARD_READ_BYTES):
        asyncio.get_running_loop().remove_reader(guard_fd)
        service.stopping.set()


def raise_open_files_limit() -> None:
    """Raise the limit of open files to the maximum: each connection and segment needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems report a higher limit than they allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Run the process of an `EmbeddedBroker`."""
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
        # The parent removes the data if it still exists, because it may restart the broker.
        if folder is not None and _has_ended(guard_fd):
            shutil.rmtree(folder, ignore_errors=True)
    return EXIT_STOPPED


def _read_settings(fd: int) -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        if len(line) > SETTINGS_BYTES_MAX or not (more := os.read(fd, SETTINGS_BYTES_MAX)):
            raise ConfigError("no settings on standard input: expected a line of JSON")
        line += more
    settings: dict[str, Any] = json.loads(line)
    return settings


def _has_ended(fd: int) -> bool:
    """Return whether the other end of a pipe is closed."""
    os.set_blocking(fd, False)
    try:
        return not os.read(fd, _GUARD_READ_BYTES)
    except BlockingIOError:
        return False


def _print(line: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # the parent has ended
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
