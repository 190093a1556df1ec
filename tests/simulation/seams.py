"""Where the real code meets the simulation: functions of the system that are replaced while it runs.

    clocks        time.time, monotonic, perf_counter, sleep …    the world's time, with the skew of the process
    randomness    random, uuid.uuid4                             from the world's generator
    disk          functions of os                                disk.py
    network       sockets and selectors of clients and brokers   network.py
    threads       `threading` in the modules of the producer     greenlets: world.py

Everything else of brokers, producers and committer is the code that users run. Hash order must be fixed before the
interpreter starts: `fixed_hashes` starts it again.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import sys
import time
import types
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import headrace.broker.clean_shutdown
import headrace.broker.server.server
import headrace.client.blocking
import headrace.client.caches
import headrace.client.concurrency
import headrace.client.network
import headrace.client.plugins
import headrace.producer.accumulator
import headrace.producer.batch
import headrace.producer.buffer_pool
import headrace.producer.engine
import headrace.producer.process
import headrace.spark.worker
from headrace.client.connection import Connection, ConnectionSettings
from tests.simulation.disk import Disk
from tests.simulation.network import Network, Selector, Socket, WakeSocket
from tests.simulation.world import EPOCH_SECONDS, Thread, World

THREADING_MODULES = (
    headrace.client.blocking,
    headrace.client.caches,
    headrace.client.concurrency,
    headrace.client.plugins,
    headrace.producer.batch,
    headrace.producer.buffer_pool,
    headrace.producer.engine,
    headrace.spark.worker,
)


def fixed_hashes() -> None:
    """Start this interpreter again with a fixed order of sets, unless it has one."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})


@contextmanager
def installed(world: World, network: Network, disk: Disk, *, logs: bool = False) -> Iterator[None]:
    """Replace the functions of the system by those of the simulation."""
    with ExitStack() as stack:

        def replace(owner: Any, **attributes: object) -> None:
            for name, value in attributes.items():
                stack.enter_context(mock.patch.object(owner, name, value))

        replace(time, **_clocks(world))
        replace(os, **disk.functions(), getpid=_pid(world), urandom=world.rng.randbytes)
        replace(uuid, uuid4=lambda: uuid.UUID(int=world.rng.getrandbits(128), version=4))
        replace(random, Random=_seeded(world))
        replace(headrace.broker.server.server, bind=lambda host, port, name: network.listen(host, port))
        replace(
            headrace.client.network, Connection=_connection(network), socket=_Sockets(), selectors=_selectors(network)
        )
        replace(headrace.producer.accumulator, SYSTEM_CLOCK=None)  # compiled code would read the clock itself
        replace(headrace.producer.process, register=lambda engine: None)  # nothing is to be done at exit
        replace(headrace.broker.clean_shutdown, BOOT_ID=BootId(world))
        replace(headrace.spark.worker, _this=_per_process(world, type(headrace.spark.worker._this())))
        for module in THREADING_MODULES:
            replace(module, threading=_threading(world))
        if not logs:  # most of it is about killed connections
            logging.disable(logging.CRITICAL)
            stack.callback(logging.disable, logging.NOTSET)
        state = random.getstate()
        random.seed(world.rng.getrandbits(64))
        stack.callback(random.setstate, state)
        yield


def _clocks(world: World) -> dict[str, Callable[..., Any]]:
    def now() -> float:
        return EPOCH_SECONDS + world.elapsed if world.process is None else world.process.time()

    def sleep(seconds: float) -> None:
        Thread.current().wait(seconds)

    return {
        "time": now,
        "time_ns": lambda: int(now() * 1e9),
        "monotonic": lambda: world.now,
        "monotonic_ns": lambda: int(world.now * 1e9),
        "perf_counter": lambda: world.now,
        "perf_counter_ns": lambda: int(world.now * 1e9),
        "sleep": sleep,
    }


def _pid(world: World) -> Callable[[], int]:
    real = os.getpid()
    return lambda: real if world.process is None else world.process.pid


def _per_process(world: World, make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function for state that every process has of its own."""

    def state() -> Any:
        assert world.process is not None
        if world.process.state is None:
            world.process.state = make()
        return world.process.state

    return state


def _seeded(world: World) -> type[random.Random]:
    class Seeded(random.Random):
        """A generator that takes its seed from the world's instead of the operating system's."""

        def __new__(cls, *seed: Any) -> Seeded:
            return super().__new__(cls)

        def __init__(self, seed: Any = None) -> None:
            super().__init__(world.rng.getrandbits(64) if seed is None else seed)

    return Seeded


def _connection(network: Network) -> type[Connection]:
    class SimulatedConnection(Connection):
        """A client's connection that opens sockets of the simulated network."""

        def __init__(
            self,
            node_id: int,
            endpoint: Any,
            address: Any,
            settings: ConnectionSettings,
            *arguments: Any,
            **options: Any,
        ) -> None:
            settings = dataclasses.replace(settings, open_socket=_opener(network))
            super().__init__(node_id, endpoint, address, settings, *arguments, **options)

    return SimulatedConnection


def _opener(network: Network) -> Any:
    def open_socket(family: int, kind: int) -> Socket:
        return network.open()

    return open_socket


class _Sockets:
    """`socket`, as far as the network client uses it."""

    socketpair = staticmethod(WakeSocket.pair)


def _selectors(network: Network) -> Any:
    import selectors

    return types.SimpleNamespace(
        BaseSelector=selectors.BaseSelector,
        DefaultSelector=lambda: Selector(network),
        EVENT_READ=selectors.EVENT_READ,
        EVENT_WRITE=selectors.EVENT_WRITE,
    )


# -- threads -------------------------------------------------------------------------------------


class Lock:
    """`threading.Lock`: a thread that has to wait for it lets others run."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: list[Thread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self.locked():
            if not blocking:
                return False
            thread = Thread.current()
            self._waiting.append(thread)
            while self.locked():
                if not thread.wait(None if timeout < 0 else timeout):
                    self._waiting = [each for each in self._waiting if each is not thread]
                    return False
            self._waiting = [each for each in self._waiting if each is not thread]
        self._is_held = True
        return True

    def locked(self) -> bool:
        return self._is_held

    def release(self) -> None:
        self._is_held = False
        for thread in self._waiting[:1]:
            thread.wake()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class JoinableThread:
    """`threading.Thread`."""

    def __init__(
        self, target: Callable[..., object], name: str = "", daemon: bool = True, args: tuple[Any, ...] = ()
    ) -> None:
        self.name = name
        self._call = lambda: target(*args)
        self._thread: Thread | None = None

    def start(self) -> None:
        process = Thread.current().process
        self._thread = process.start_thread(self._call, f"{process}/{self.name}")
        self._thread.facade = self

    def join(self, timeout: float | None = None) -> None:
        assert self._thread is not None
        self._thread.join(timeout)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.is_done


def _threading(world: World) -> Any:
    import threading

    return types.SimpleNamespace(
        Lock=Lock,
        RLock=threading.RLock,
        Thread=JoinableThread,
        TIMEOUT_MAX=threading.TIMEOUT_MAX,
        current_thread=lambda: Thread.current().facade,
        main_thread=threading.main_thread,
        get_ident=lambda: id(Thread.current()),
    )


class BootId:
    """The file with the boot id of the host of the running process."""

    def __init__(self, world: World) -> None:
        self._world = world

    def read_text(self) -> str:
        assert self._world.process is not None
        return f"boot {self._world.process.host} {self._world.process.boots}"
