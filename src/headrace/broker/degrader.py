"""A TCP proxy between clients and a broker that degrades the network on demand.

    client ─► read ─► queue of chunks, each with its due time ─► write ─► broker      and back, the same way

The queue simulates the latency of a network: chunks do not wait for the delay of earlier ones. Its length is bounded;
when it is full, the sender has to wait, as with a full TCP buffer.

It runs on an event loop in a separate thread. All conditions can be changed at run time.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from headrace.broker.tasks import start_loop, start_task
from headrace.errors import ClosedError, ConfigError, TimedOutError

CHUNK_BYTES_MAX = 64 * 1024
QUEUED_CHUNKS_MAX = 256  # in one direction of a connection
SLICE_SECONDS = 0.02  # with a limited bandwidth, the bytes of this time are sent at once
CALL_SECONDS_MAX = 10.0
CONNECT_SECONDS_MAX = 10.0
MS_MAX = 3_600_000
_BACKLOG = 128

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions of the network; the defaults are perfect."""

    latency_ms: float = 0.0  # in each direction
    jitter_ms: float = 0.0  # maximum additional latency, uniformly distributed; order is kept
    bandwidth_bytes_per_s: float | None = None  # in each direction of each connection
    cut_after_bytes: int | None = None  # cut all connections after this many bytes in either direction

    def __post_init__(self) -> None:
        for name in ("latency_ms", "jitter_ms"):
            if not 0 <= getattr(self, name) <= MS_MAX:
                raise ConfigError(f"invalid {name} {getattr(self, name)!r}: expected 0 to {MS_MAX}")
        if self.bandwidth_bytes_per_s is not None and self.bandwidth_bytes_per_s < 1:
            raise ConfigError(
                f"invalid bandwidth_bytes_per_s {self.bandwidth_bytes_per_s!r}: expected at least 1 or None"
            )
        if self.cut_after_bytes is not None and self.cut_after_bytes < 0:
            raise ConfigError(f"invalid cut_after_bytes {self.cut_after_bytes!r}: expected at least 0 or None")


class Degrader:
    """Listens on a port and forwards connections under the current conditions."""

    def __init__(self, target: str | None = None, *, port: int = 0, seed: int | None = None, **conditions: Any) -> None:
        """Forward connections to `target` (host:port); conditions as for `set`."""
        self.conditions = Conditions(**conditions)  # Replaced as a whole: any thread may read it.
        self._target = target
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
        self._links: set[_Link] = set()  # Event loop only.
        self._is_cut = False  # Event loop only.
        self._flowing = asyncio.Event()  # Event loop only; cleared while half open.
        self._flowing.set()
        self._bytes_left: int | None = self.conditions.cut_after_bytes  # Event loop only.
        self.connections_total = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-degrader", daemon=True)
        host, self.port = self._listener.getsockname()
        self.address = f"{host}:{self.port}"

    # -- any thread ------------------------------------------------------------------------------

    def start(self) -> Self:
        self._thread.start()
        self._call(self._open)
        return self

    def set(self, **changes: Any) -> None:
        """Change conditions, also for open connections. See `Conditions`."""
        conditions = replace(self.conditions, **changes)
        self._call(self._set, conditions, "cut_after_bytes" in changes)

    def connect_to(self, target: str) -> None:
        """Forward new connections to another target."""
        self._target = target

    def cut(self) -> None:
        """Reset all connections and reject new ones, until `heal`."""
        self._call(self.cut_off)

    def half_open(self) -> None:
        """Stop all traffic without closing connections; what is sent arrives after `heal`."""
        self._call(self._flowing.clear)

    def heal(self) -> None:
        """Restore perfect conditions. Connections that were cut stay closed."""
        self._call(self._heal)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._links)

    def close(self) -> None:
        """Reset all connections and release the port."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CALL_SECONDS_MAX)
        self._listener.close()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on the event loop and wait for it."""

        async def done() -> None:
            function(*arguments)

        self._run(done())

    def _run(self, task: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            task.close()
            raise ClosedError("the degrader is not running: start it, or use it in a with block")
        try:
            return asyncio.run_coroutine_threadsafe(task, self._loop).result(CALL_SECONDS_MAX)
        except TimeoutError:
            raise TimedOutError(f"timed out after {CALL_SECONDS_MAX:g} s waiting for the degrader") from None

    # -- on the event loop -----------------------------------------------------------------------

    def _open(self) -> None:
        self._accepting = start_loop(self._accept, "degrader")

    async def _accept(self) -> None:
        self._listener.setblocking(False)
        while True:
            try:
                client, _ = await self._loop.sock_accept(self._listener)
            except OSError:  # the client has disconnected, or too many files are open
                await asyncio.sleep(SLICE_SECONDS)
                continue
            if self._is_cut or self._target is None:
                _reset(client)
                continue
            self.connections_total += 1
            link = _Link(self, client)
            self._links.add(link)
            link.start(self._loop, self._target)

    def _set(self, conditions: Conditions, reset_count: bool) -> None:
        self.conditions = conditions
        if reset_count:
            self._bytes_left = conditions.cut_after_bytes

    def cut_off(self) -> None:
        """Cut all connections. Event loop only."""
        self._is_cut = True
        for link in [*self._links]:
            link.break_off()

    def _heal(self) -> None:
        self._is_cut = False
        self._bytes_left = None
        self.conditions = Conditions()
        self._flowing.set()

    async def _close(self) -> None:
        self._accepting.cancel()
        tasks = [task for link in self._links for task in link.tasks]
        self.cut_off()
        await asyncio.gather(self._accepting, *tasks, return_exceptions=True)

    def forget(self, link: _Link) -> None:
        self._links.discard(link)

    def allowance(self, size: int) -> int:
        """Return how many of these bytes may pass before the cut."""
        if self._bytes_left is None:
            return size
        passed = min(size, self._bytes_left)
        self._bytes_left -= passed
        return passed

    @property
    def is_exhausted(self) -> bool:
        return self._bytes_left == 0

    def delay_seconds(self) -> float:
        conditions = self.conditions
        return (conditions.latency_ms + self._random.random() * conditions.jitter_ms) / 1000

    async def flowing(self) -> None:
        await self._flowing.wait()


class _Link:
    """The connection of a client and the corresponding one to the broker. Event loop only."""

    def __init__(self, network: Degrader, client: socket.socket) -> None:
        self._network = network
        self._client = client
        self._server = socket.socket(socket.AF_INET)
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, loop: asyncio.AbstractEventLoop, target: str) -> None:
        self.tasks.append(start_task(self._run(loop, target), "degraded connection"))

    async def _run(self, loop: asyncio.AbstractEventLoop, target: str) -> None:
        host, _, port = target.rpartition(":")
        try:
            for end in (self._client, self._server):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                await loop.sock_connect(self._server, (host.strip("[]"), int(port)))
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(loop, self._client, self._server))
                both.create_task(self._pass(loop, self._server, self._client))
        except (OSError, ExceptionGroup):
            pass  # either end has closed its connection
        finally:
            self.close()

    async def _pass(self, loop: asyncio.AbstractEventLoop, source: socket.socket, target: socket.socket) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED_CHUNKS_MAX)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._read(loop, source, queue))
            both.create_task(self._write(loop, target, queue))

    async def _read(
        self, loop: asyncio.AbstractEventLoop, source: socket.socket, queue: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        network = self._network
        while True:
            await network.flowing()
            data = await loop.sock_recv(source, CHUNK_BYTES_MAX)
            await queue.put((loop.time() + network.delay_seconds(), data))
            if not data:
                return

    async def _write(
        self, loop: asyncio.AbstractEventLoop, target: socket.socket, queue: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        network = self._network
        while True:
            due, data = await queue.get()
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            await network.flowing()
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            await self._send(loop, target, data)

    async def _send(self, loop: asyncio.AbstractEventLoop, target: socket.socket, data: bytes) -> None:
        """Send all bytes, in slices if the bandwidth is limited."""
        network = self._network
        while data:
            rate = network.conditions.bandwidth_bytes_per_s
            size = len(data) if rate is None else min(len(data), max(1, int(rate * SLICE_SECONDS)))
            passed = network.allowance(size)
            await loop.sock_sendall(target, data[:passed])
            if network.is_exhausted:
                network.cut_off()
                return
            if rate is not None:
                await asyncio.sleep(passed / rate)
            data = data[passed:]

    def break_off(self) -> None:
        """Reset both connections."""
        for end in (self._client, self._server):
            _reset(end, close=False)
        for task in self.tasks:
            task.cancel()

    def close(self) -> None:
        self._network.forget(self)
        for end in (self._client, self._server):
            end.close()


def _reset(end: socket.socket, *, close: bool = True) -> None:
    """Let the peer get a reset instead of an orderly close."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    if close:
        end.close()
