"""The simulated disk: real files in a folder of the run, with the faults of a disk.

    write     may be slow (the process is busy), or cut short by a crash of its process (a torn write)
    fsync     may be slow; remembers how much of a file is safe
    power cut truncates every log to a random length between what is safe and what was written

Only functions of `os` are replaced, and only for the running simulated process: code of a killed process changes
nothing any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from headrace.wire.primitives import Buffer
from tests.simulation.network import Network
from tests.simulation.world import Process, World

LOG_SUFFIX = ".log"


class _File(NamedTuple):
    """What a descriptor was opened for."""

    path: str
    inode: int


class Disk:
    """Replaces functions of `os` while a simulation runs."""

    def __init__(self, world: World, network: Network) -> None:
        self.slow_seconds: dict[str, float] = {}
        """How long a write or fsync of a process takes at most, by process."""
        self.torn: dict[str, int] = {}
        """By process: after how many more writes it crashes within one."""
        self._world = world
        self._network = network
        self._safe_bytes: dict[str, int] = {}  # of a log file, by path
        self._descriptors: dict[Process, dict[int, _File]] = {}
        self._real: dict[str, Any] = {}

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return the replacements, by name in `os`."""
        names = ("open", "close", "write", "pwrite", "pwritev", "fsync", "ftruncate", "truncate", "replace", "unlink")
        self._real = {name: getattr(os, name) for name in (*names, "writev")}
        return {
            "ftruncate": self._ftruncate,
            "truncate": self._truncate,
            "replace": self._replace,
            "unlink": self._unlink,
            "open": self._open,
            "close": self._close,
            "write": lambda fd, data: self._write(fd, [data], "write", lambda parts: (fd, parts[0])),
            "pwrite": lambda fd, data, at: self._write(fd, [data], "pwrite", lambda parts: (fd, parts[0], at)),
            "pwritev": lambda fd, parts, at: self._write(fd, parts, "pwritev", lambda left: (fd, left, at)),
            "fsync": self._fsync,
            "writev": self._writev,
        }

    def _check_alive(self) -> None:
        if self._world.process is not None:
            self._world.process.check_alive()

    def _ftruncate(self, fd: int, size: int) -> None:
        self._check_alive()
        self._real["ftruncate"](fd, size)
        process = self._world.process
        file = None if process is None else self._descriptors.get(process, {}).get(fd)
        if file is not None:
            self._shortened(file.path, size)

    def _truncate(self, path: Any, size: int) -> None:
        self._check_alive()
        self._real["truncate"](path, size)
        self._shortened(str(path), size)

    def _shortened(self, path: str, size: int) -> None:
        """What is written behind this size from now on is not synced."""
        if path in self._safe_bytes:
            self._safe_bytes[path] = min(self._safe_bytes[path], size)

    def _replace(self, source: Any, target: Any, **options: Any) -> None:
        self._check_alive()
        self._real["replace"](source, target, **options)
        self._safe_bytes[str(target)] = self._safe_bytes.pop(str(source), 0)

    def _unlink(self, path: Any, **options: Any) -> None:
        self._check_alive()
        self._real["unlink"](path, **options)
        self._safe_bytes.pop(str(path), None)

    def _open(self, path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        process = self._world.process
        if process is not None:
            process.check_alive()
        fd: int = self._real["open"](path, flags, mode, **options)
        if process is not None:
            self._descriptors.setdefault(process, {})[fd] = _File(str(path), os.fstat(fd).st_ino)
        return fd

    def _close(self, fd: int) -> None:
        process = self._world.process
        if process is not None:
            if not process.is_alive:
                return  # closed with the process
            self._descriptors.get(process, {}).pop(fd, None)
        self._real["close"](fd)

    def _write(self, fd: int, parts: Iterable[Buffer], name: str, arguments: Callable[[list[Buffer]], Any]) -> int:
        process, parts = self._world.process, list(parts)
        if process is not None:
            process.check_alive()
            self._slow_down(process)
            if process.name in self.torn and fd in self._descriptors.get(process, {}):
                self.torn[process.name] -= 1
                if self.torn[process.name] < 0:
                    del self.torn[process.name]
                    whole = b"".join(parts)
                    size = self._world.rng.randrange(len(whole) + 1)
                    self._real[name](*arguments([whole[:size]]))
                    name = Path(self._descriptors[process][fd].path).name
                    self._world.note(f"{process} crashes after {size} of {len(whole)} bytes to {name}")
                    process.kill()
                    process.check_alive()
        count: int = self._real[name](*arguments(parts))
        return count

    def _fsync(self, fd: int) -> None:
        process = self._world.process
        if process is not None:
            process.check_alive()
            self._slow_down(process)
            file = self._descriptors.get(process, {}).get(fd)
            if file is not None and file.path.endswith(LOG_SUFFIX):
                self._safe_bytes[file.path] = os.fstat(fd).st_size

    def _writev(self, fd: int, parts: Any) -> int:
        sock = self._network.sockets.get(fd)
        if sock is not None:
            return sock.sendmsg(parts)
        count: int = self._real["writev"](fd, parts)
        return count

    def _slow_down(self, process: Process) -> None:
        seconds_max = self.slow_seconds.get(process.name)
        if seconds_max:
            process.block(self._world.rng.uniform(0, seconds_max))

    # -- the end of a process --------------------------------------------------------------------

    def process_ended(self, process: Process) -> None:
        """Close the files of a killed process, as the kernel does; this releases its locks."""
        for fd, file in self._descriptors.pop(process, {}).items():
            with suppress(OSError):  # a file object has closed it
                if os.fstat(fd).st_ino == file.inode:  # and it was not opened again
                    self._real["close"](fd)

    def cut_power(self, folder: Path) -> int:
        """Truncate logs to a random length that is at least what was synced; return how many bytes are lost."""
        lost = 0
        for path in sorted(folder.rglob(f"*{LOG_SUFFIX}")):
            size = path.stat().st_size
            safe = min(self._safe_bytes.get(str(path), 0), size)
            kept = self._world.rng.randint(safe, size)
            lost += size - kept
            os.truncate(path, kept)
        return lost
