"""Taking connections from a listening socket, and leaving them there while there are no file descriptors for more.

asyncio's own servers log an error for every connection that waits, thousands in a second (python/cpython#151615), and
let connections have the descriptors that the log's files need. Here accepting pauses, with one line in the log a
second, and goes on when connections have ended. Who waits meanwhile waits in the system's backlog.
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
"""How soon accepting is tried again."""
REPORT_SECONDS = 1.0
RESERVED_SHARE = 0.3
RESERVED_MAX = 64
"""Descriptors that are neither for connections nor for segments: checkpoints, the catalog, other brokers, tools."""
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def connections_max() -> int:
    """As many connections as there are descriptors for, beside the files."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return 1 << 30
    files = min(FILES_OPEN_MAX, int(allowed * FILES_SHARE))
    return max(allowed - files - min(RESERVED_MAX, int(allowed * RESERVED_SHARE)), 1)


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
        """`is_full` tells whether there are as many connections as there may be."""
        self._sock = sock
        self._protocol = protocol
        self._tls = tls
        self._backlog = backlog
        self._is_full = is_full
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()  # connections that are being set up
        self._paused: asyncio.TimerHandle | None = None
        self._reported_at = -REPORT_SECONDS

    @property
    def beginning(self) -> int:
        """Connections that are accepted, and whose TLS handshake is not over."""
        return len(self._beginning)

    def start(self) -> None:
        self._sock.setblocking(False)
        self._sock.listen(self._backlog)
        self._loop.add_reader(self._sock, self._accept)

    def close(self) -> None:
        """Accept no more."""
        if self._paused is not None:
            self._paused.cancel()
        else:
            self._loop.remove_reader(self._sock)
        self._sock.close()
        for task in self._beginning:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(self._backlog):
            if self._is_full():
                self._pause("all that this process may open are in use")
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
            task = start_task(self._begin(accepted), "accepting a connection")
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _begin(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted, ssl=self._tls)
        except OSError as error:  # the peer has gone, or its handshake failed
            log.debug("a connection ended before it began: %r", error)
            accepted.close()
        except BaseException:
            accepted.close()
            raise

    def _pause(self, reason: str) -> None:
        now = self._loop.time()
        if now - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            log.error(
                "out of file descriptors: %s (ulimit -n is %d); new connections wait until others end: raise the limit",
                reason,
                allowed,
            )
        self._loop.remove_reader(self._sock)
        self._paused = self._loop.call_later(RETRY_SECONDS, self._resume)

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._sock, self._accept)
