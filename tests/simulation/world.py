"""The simulated world: virtual time, one queue of events, one source of randomness.

    World      the queue: `at(time, call, process)`; `run_until` executes events and is the only place where time passes
    Process    what is killed, paused and delayed as one: a broker or a client, with a clock that may be wrong
    Thread     blocking code of a process, as a greenlet: `wait` returns to the queue until `wake` or a time-out

Exactly one event runs at a time, and everything random comes from `World.rng`: a seed determines the whole run.
`World.digest` is a checksum of all bytes that were delivered, with time and addressees; two runs with the same digest
did the same.
"""

from __future__ import annotations

import heapq
import itertools
import random
import traceback
import zlib
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

START_SECONDS = 1_000.0
EPOCH_SECONDS = 1_700_000_000.0
"""The time of day at the start."""


class ProcessKilledError(BaseException):
    """Ends the code of a killed process. Not an Exception: the code must not handle it."""


class LivelockError(Exception):
    """Code of the simulation runs in a loop without waiting."""


class World:
    """Time, events and randomness of one simulation."""

    def __init__(self, seed: int, events_per_second_max: float = 20_000.0) -> None:
        """More events in a simulated second are a loop that never waits, in which no time would pass."""
        self.seed = seed
        self._events_per_second_max = events_per_second_max
        self.rng = random.Random(seed)
        self.now = START_SECONDS
        self.process: Process | None = None  # whose event is running
        self.digest = 0
        self.events = 0
        self.notes: list[str] = []
        """Faults and other milestones, for people."""
        self.failures: list[str] = []
        """Threads that ended with an error."""
        self._queue: list[tuple[float, float, int, Process | None, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._hub = getcurrent()

    @property
    def elapsed(self) -> float:
        """The simulated seconds since the start."""
        return self.now - START_SECONDS

    def at(self, when: float, call: Callable[[], object], process: Process | None = None) -> None:
        """Call a function at a time, as an event of a process. Events of the same time run in random order."""
        heapq.heappush(self._queue, (max(when, self.now), self.rng.random(), next(self._numbers), process, call))

    def later(self, delay: float, call: Callable[[], object], process: Process | None = None) -> None:
        self.at(self.now + delay, call, process)

    def run_until(self, condition: Callable[[], object], seconds_max: float) -> bool:
        """Execute events until the condition is true; False if it is not within `seconds_max` simulated seconds."""
        deadline = self.now + seconds_max
        queue, first_event = self._queue, self.events
        while not condition():
            if not queue or queue[0][0] > deadline:
                self.now = deadline
                return False
            when, _, _, process, call = heapq.heappop(queue)
            if int(when) != int(self.now):
                first_event = self.events
            elif self.events - first_event > self._events_per_second_max:
                raise LivelockError(f"{self.events - first_event} events within a second; the last one is of {process}")
            self.now = when
            if process is None:
                self.events += 1
                call()
            elif process.is_alive and not process.defers(call):
                self.events += 1
                self.process = process
                try:
                    call()
                except ProcessKilledError:  # it has crashed in this event
                    continue
                finally:
                    self.process = None
        return True

    def run_for(self, seconds: float) -> None:
        self.run_until(lambda: False, seconds)

    def record(self, *facts: object) -> None:
        """Add facts to the digest."""
        self.digest = zlib.crc32(repr((self.now, *facts)).encode(), self.digest)

    def note(self, text: str) -> None:
        self.record(text)
        self.notes.append(f"{self.elapsed:12.6f}  {text}")

    def switch_to_hub(self) -> Any:
        return self._hub.switch()


class Process:
    """A simulated process on a host of its own."""

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.pid = 100 + world.rng.randrange(30_000)
        self.is_alive = True
        self.is_paused = False
        self.skew_seconds = 0.0
        self.boots = 0  # how often the host has started
        self.busy_until = 0.0  # a blocking call, such as a write to a slow disk, is not over before
        self.state: Any = None  # module-level state of its code
        self.on_kill: list[Callable[[], None]] = []
        self._deferred: list[Callable[[], object]] = []
        self._threads: dict[int, Thread] = {}

    def __repr__(self) -> str:
        return self.name

    def time(self) -> float:
        """Return the time of day as this process sees it."""
        return EPOCH_SECONDS + self.world.elapsed + self.skew_seconds

    def defers(self, call: Callable[[], object]) -> bool:
        """Keep an event for later if the process is paused or busy."""
        if self.is_paused:
            self._deferred.append(call)
            return True
        if self.busy_until > self.world.now:
            self.world.at(self.busy_until, call, self)
            return True
        return False

    def block(self, seconds: float) -> None:
        """Let the current blocking call take some time."""
        self.busy_until = max(self.busy_until, self.world.now) + seconds

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        deferred, self._deferred = self._deferred, []
        for call in deferred:
            self.world.at(self.world.now, call, self)

    def kill(self) -> None:
        """End the process at once. Its code sees ProcessKilledError, and has no effect any more."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._deferred.clear()
        before, self.world.process = self.world.process, self
        try:
            for thread in list(self._threads.values()):
                thread.end()
            for call in self.on_kill:
                call()
        finally:
            self.world.process = before

    def check_alive(self) -> None:
        if not self.is_alive:
            raise ProcessKilledError

    def start_thread(self, target: Callable[[], object], name: str = "") -> Thread:
        thread = Thread(self, target, name or self.name)
        self._threads[id(thread)] = thread
        return thread

    def thread_ended(self, thread: Thread) -> None:
        self._threads.pop(id(thread), None)


class Thread:
    """Blocking code of a process. It runs until it waits; nothing else runs meanwhile."""

    def __init__(self, process: Process, target: Callable[[], object], name: str) -> None:
        self.name = name
        self.process = process
        self.error: BaseException | None = None
        self.is_done = False
        self.facade: object = None  # the object that the code of the process sees
        self._target = target
        self._greenlet = greenlet(self._run)
        self._greenlet.simulated = self
        self._turn = 0  # a wake-up or time-out of an earlier wait has another number
        self._is_waiting = False
        self._joining: list[Thread] = []
        process.world.at(process.world.now, self._greenlet.switch, process)

    @staticmethod
    def current() -> Thread:
        thread: Thread = getcurrent().simulated
        return thread

    def wait(self, seconds: float | None) -> bool:
        """Wait for `wake`; False if it does not come within `seconds`."""
        process, world = self.process, self.process.world
        process.check_alive()
        self._turn += 1
        turn = self._turn
        if seconds is not None:
            world.later(max(seconds, 0.0), lambda: self._resume(turn, False), process)
        self._is_waiting = True
        is_woken: bool = world.switch_to_hub()
        process.check_alive()
        return is_woken

    def wake(self) -> None:
        """End the current wait. Without one, nothing happens."""
        if self._is_waiting:
            turn, world = self._turn, self.process.world
            world.at(world.now, lambda: self._resume(turn, True), self.process)

    def join(self, seconds: float | None) -> None:
        if not self.is_done:
            me = Thread.current()
            self._joining.append(me)
            me.wait(seconds)

    def end(self) -> None:
        """End the code of a killed process."""
        if not self.is_done and self._greenlet:
            self._is_waiting = False
            self._greenlet.parent = getcurrent()
            self._greenlet.throw(ProcessKilledError)
        self.is_done = True

    def _resume(self, turn: int, is_woken: bool) -> None:
        if self._is_waiting and turn == self._turn:
            self._is_waiting = False
            self._greenlet.switch(is_woken)

    def _run(self) -> None:
        try:
            self._target()
        except ProcessKilledError:
            return
        except BaseException as error:
            self.error = error
            text = "".join(traceback.format_exception(error))
            self.process.world.failures.append(f"{self.name}: {text}")
        finally:
            self.is_done = True
            self.process.thread_ended(self)
            for thread in self._joining:
                thread.wake()
