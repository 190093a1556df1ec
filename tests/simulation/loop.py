"""An asyncio event loop on the simulated clock and network: what brokers run on.

A turn of the loop, in which it runs the callbacks that are ready, is an event of the world. Work that asyncio would
give to a thread (`asyncio.to_thread`) runs at a later time as an event of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, TypeVarTuple

from headrace.wire.primitives import Buffer
from tests.simulation.network import Network, Socket
from tests.simulation.world import Process, ProcessKilledError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

THREAD_SECONDS = (0.000_1, 0.005)
"""How long work on a thread takes."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop of one process."""

    def __init__(self, process: Process, network: Network) -> None:
        self.process = process
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self._network = network
        self._world = process.world
        self._ready: deque[asyncio.Handle] = deque()
        self._has_turn = False
        self._exception_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._task_count = 0
        process.on_kill.append(self._end)

    # -- callbacks -------------------------------------------------------------------------------

    def time(self) -> float:
        return self._world.now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._make_ready(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._world.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)

        def due() -> None:
            if not handle.cancelled():
                self._make_ready(handle)

        self._world.at(when, due, self.process)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is skipped when it is due."""

    def _make_ready(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)
        if not self._has_turn:
            self._has_turn = True
            self._world.at(self._world.now, self._turn, self.process)

    def _turn(self) -> None:
        self._has_turn = False
        ready = self._ready
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
                if not self.process.is_alive:
                    return
        finally:
            events._set_running_loop(None)
        if ready and not self._has_turn:
            self._has_turn = True
            self._world.at(self._world.now, self._turn, self.process)

    def _end(self) -> None:
        """Close the coroutines of a killed process, whose code has no effect any more."""
        self._ready.clear()
        tasks, self.tasks = self.tasks, {}
        for task in tasks.values():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            assert coroutine is not None
            try:
                coroutine.close()
            except (
                RuntimeError,
                ValueError,
                ProcessKilledError,
            ):  # it awaits in a `finally`, is running, or saw the end
                continue

    # -- futures, tasks, threads -----------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        self._task_count += 1
        number = self._task_count
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or f"task-{number}", context=context)
        self.tasks[number] = task
        task.add_done_callback(lambda done: self.tasks.pop(number, None))
        return task

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        outcome = self.create_future()

        def run() -> None:
            try:
                value = func(*args)
            except Exception as error:
                if not outcome.done():
                    outcome.set_exception(error)
            else:
                if not outcome.done():
                    outcome.set_result(value)

        self._world.later(self._world.rng.uniform(*THREAD_SECONDS), run, self.process)
        return outcome

    # -- the rest of the interface that brokers use ----------------------------------------------

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self.process.is_alive

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._world.note(f"{self.process}: {context['message']}: {error!r}")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._exception_handler is None:
            self.default_exception_handler(context)
        else:
            self._exception_handler(self, context)

    # -- sockets ---------------------------------------------------------------------------------

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        assert not args
        sock: Socket = fd

        def notify() -> None:
            if sock.is_readable:
                self._world.at(self._world.now, lambda: self._call_reader(sock, callback), self.process)

        sock.watchers["reader"] = notify
        notify()

    def _call_reader(self, sock: Socket, callback: Callable[[], Any]) -> None:
        if "reader" in sock.watchers and sock.is_readable:
            self.call_soon(callback)

    def remove_reader(self, fd: Any) -> bool:
        return fd.watchers.pop("reader", None) is not None

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **options: Any) -> Any:
        assert options.get("ssl") is None
        return self._transport(protocol_factory, sock)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        assert options.get("ssl") is None
        sock = self._network.open()
        connected = self.create_future()

        def notify() -> None:
            if not connected.done() and sock.is_writable:
                connected.set_result(None)

        sock.watchers["connect"] = lambda: self._world.at(self._world.now, notify, self.process)
        sock.connect_ex((host, port))
        try:
            await connected
        except BaseException:
            sock.close()
            raise
        del sock.watchers["connect"]
        if sock.error:
            sock.close()
            raise ConnectionRefusedError(sock.error, f"{host}:{port}: {errno.errorcode[sock.error]}")
        return self._transport(protocol_factory, sock)

    def _transport(self, protocol_factory: Callable[[], Any], sock: Socket) -> tuple[SimulatedTransport, Any]:
        protocol = protocol_factory()
        transport = SimulatedTransport(self, sock, protocol)
        protocol.connection_made(transport)
        transport.resume_reading()
        return transport, protocol


class SimulatedTransport(asyncio.Transport):
    """A connection of a `SimulatedLoop`, for a `BufferedProtocol`. Writes are never held back."""

    def __init__(self, loop: SimulatedLoop, sock: Socket, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__({"socket": sock, "peername": sock.peer_name, "sockname": sock.name})
        self._loop = loop
        self._sock = sock
        self._protocol = protocol
        self._is_closing = False
        self._is_paused = True
        self._is_scheduled = False

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not (self._is_paused or self._is_closing)

    def pause_reading(self) -> None:
        self._is_paused = True
        self._sock.watchers.pop(self, None)

    def resume_reading(self) -> None:
        if self._is_paused and not self._is_closing:
            self._is_paused = False
            self._sock.watchers[self] = self._changed
            self._changed()

    def write(self, data: Buffer) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if not self._is_closing:
            try:
                self._sock.sendmsg(list_of_data)
            except OSError as error:
                self._close(error)

    def close(self) -> None:
        self._close(None)

    abort = close

    def _close(self, error: Exception | None) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._sock.watchers.pop(self, None)
            self._sock.close()
            self._loop.call_soon(self._protocol.connection_lost, error)

    def _changed(self) -> None:
        """Read in an event of the process, once for all bytes that have arrived until then."""
        if not self._is_scheduled and self._sock.is_readable:
            self._is_scheduled = True
            world = self._loop.process.world
            world.at(world.now, self._schedule_read, self._loop.process)

    def _schedule_read(self) -> None:
        self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._is_scheduled = False
        if not self.is_reading() or not self._sock.is_readable:
            return
        try:
            room = self._protocol.get_buffer(-1)
            count = self._sock.recv_into(memoryview(room))
        except OSError as error:
            self._close(error)
            return
        if count:
            self._protocol.buffer_updated(count)
            self._changed()
        elif not self._protocol.eof_received():
            self._close(None)
