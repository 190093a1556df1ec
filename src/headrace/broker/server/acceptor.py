"""Accepting connections, with a pause while the process is out of file descriptors.

asyncio's servers log an error for every waiting connection, thousands per second (python/cpython#151615), and let
connections take the descriptors that log segments need. This acceptor pauses, with one log line per second, until
connections have been closed. Meanwhile clients wait in the backlog of the operating system.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Callable

from headrace.broker.log.files import FILES_OPEN_MAX, FILES_SHARE
from headrace.broker.tasks import start_task

log = logging.getLogger("headrace.broker")

RETRY_SECONDS = 0.1
"""The length of a pause."""
REPORT_SECONDS = 1.0
RESERVED_SHARE = 0.3
RESERVED_MAX = 64
"""File descriptors for neither connections nor segments: checkpoints, the catalog, other brokers, tools."""
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def connections_max() -> int:
    """Return how many connections the limit of file descriptors allows, after segments and reserved ones."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 30
    files = min(FILES_OPEN_MAX, int(limit * FILES_SHARE))
    return max(limit - files - min(RESERVED_MAX, int(limit * RESERVED_SHARE)), 1)


class Acceptor:
    """Accepts connections on one socket. Event loop only."""

    def __init__(
        self,
        sock: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        backlog: int,
        is_full: Callable[[], bool],
    ) -> None:
        """`is_full` returns whether the maximum number of connections is reached."""
        self._sock = sock
        self._protocol = protocol
        self._tls = tls
        self._backlog = backlog
        self._is_full = is_full
        self._loop = asyncio.get_running_loop()
        self._handshaking: set[asyncio.Task[None]] = set()  # connections in their TLS handshake
        self._paused: asyncio.TimerHandle | None = None
        self._reported_at = -REPORT_SECONDS

    @property
    def handshaking(self) -> int:
        """The number of accepted connections whose handshake is not complete."""
        return len(self._handshaking)

    def start(self) -> None:
        self._sock.setblocking(False)
        self._sock.listen(self._backlog)
        self._loop.add_reader(self._sock, self._accept)

    def close(self) -> None:
        """Stop accepting."""
        if self._paused is not None:
            self._paused.cancel()
        else:
            self._loop.remove_reader(self._sock)
        self._sock.close()
        for task in self._handshaking:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(self._backlog):
            if self._is_full():
                self._pause("all descriptors for connections are in use")
                return
            try:
                accepted, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                self._pause(str(error))
                return
            accepted.setblocking(False)
            task = start_task(self._set_up(accepted), "accepting a connection")
            self._handshaking.add(task)
            task.add_done_callback(self._handshaking.discard)

    async def _set_up(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted, ssl=self._tls)
        except OSError as error:  # disconnected, or the handshake failed
            log.debug("connection failed before it was set up: %r", error)
            accepted.close()
        except BaseException:
            accepted.close()
            raise

    def _pause(self, reason: str) -> None:
        now = self._loop.time()
        if now - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            log.error(
                "out of file descriptors: %s (ulimit -n is %d); new connections wait: raise the limit",
                reason,
                limit,
            )
        self._loop.remove_reader(self._sock)
        self._paused = self._loop.call_later(RETRY_SECONDS, self._resume)

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._sock, self._accept)
