"""The producer's buffer memory: a fixed number of bytes, allocated as buffers and returned.

Buffers of batch.size bytes are kept and reused; other sizes are only counted. Waiting threads are served in order of
arrival, so that small requests do not starve a large one. One exception: while the first waiter has been notified but
does not run yet, a running thread may take the memory, up to OVERTAKES_MAX times. A thread switch for every batch would
cost more than filling it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from headrace.client.concurrency import REENTERED, OneShotEvent, OwnedLock
from headrace.config.clock import Clock
from headrace.errors import BufferExhaustedError, ClosedError, HeadraceError, IllegalStateError, RecordTooLargeError

MIB = 1024 * 1024
OVERTAKES_MAX = 32


class Waiter:
    """A thread that waits for memory."""

    __slots__ = ("overtakes", "size", "thread_id", "woken")

    def __init__(self, size: int) -> None:
        self.size = size
        self.thread_id = threading.get_ident()
        self.overtakes = 0
        self.woken = OneShotEvent()  # Replaced by the waiting thread before each check.

    def may_be_overtaken(self, size: int) -> bool:
        """Return whether another thread may take `size` bytes first. A large request never waits for smaller ones."""
        if size < self.size or self.overtakes >= OVERTAKES_MAX:
            return False
        self.overtakes += 1
        return True


class Claim:
    """Memory that was taken from the pool and has no other owner yet: `size` bytes, and possibly a buffer.

    It is updated together with the pool's counters, without a call in between, so that a signal handler that raises
    cannot leak memory: the owner of the claim returns what is in it.
    """

    # Defaults on the class: every batch creates a claim.
    size = 0
    buffer: bytearray | None = None


class BufferPool:
    """The `buffer.memory` bytes of a producer. Any thread."""

    def __init__(
        self,
        total_bytes: int,
        batch_bytes: int,
        clock: Clock,
        *,
        why_full: Callable[[], str] = lambda: "",
        on_wait: Callable[[float], None] = lambda waited_ms: None,
        on_exhausted: Callable[[], None] = lambda: None,
    ) -> None:
        self.total_bytes = total_bytes
        self.batch_bytes = batch_bytes
        self._clock = clock
        self._why_full = why_full
        self._on_wait = on_wait
        self._on_exhausted = on_exhausted
        self.lock = OwnedLock()
        self._spare: list[bytearray] = []  # Guarded by lock: buffers of batch_bytes, counted as available.
        self._unallocated = total_bytes  # Guarded by lock: available beyond the spare buffers.
        self._waiters: deque[Waiter] = deque()  # Guarded by lock.
        self._closed: HeadraceError | None = None  # Guarded by lock: raised in every waiting thread.

    @property
    def available_bytes(self) -> int:
        return self._unallocated + len(self._spare) * self.batch_bytes

    @property
    def waiting_threads(self) -> int:
        return len(self._waiters)

    def allocate(self, size: int, max_block_ms: float, claim: Claim | None = None) -> bytearray:
        """Return a buffer of `size` bytes; blocks up to `max_block_ms` until memory is available."""
        claim = claim or Claim()
        self.reserve(size, max_block_ms, claim, spare=size == self.batch_bytes)
        if claim.buffer is None:
            claim.buffer = bytearray(size)
        return claim.buffer

    def reserve(self, size: int, max_block_ms: float, claim: Claim, *, spare: bool = False) -> None:
        """Take `size` bytes; with `spare`, `claim` gets a buffer to reuse if there is one."""
        if size > self.total_bytes:
            raise RecordTooLargeError(
                f"a batch of {size} bytes is larger than buffer.memory ({self.total_bytes}): "
                f"send smaller records or raise buffer.memory"
            )
        self.lock.check_not_owned()
        with self.lock:
            if self._closed is not None:
                raise self._closed
            if self.available_bytes >= size and (not self._waiters or self._waiters[0].may_be_overtaken(size)):
                self._take(size, claim, spare)
                return
        self._wait_in_line(size, max_block_ms, claim, spare)

    def _take(self, size: int, claim: Claim, spare: bool) -> None:
        """Move `size` available bytes to the claim. The lock is held."""
        if spare and self._spare:
            claim.buffer = self._spare[-1]
            claim.size = size
            del self._spare[-1]
            return
        while self._unallocated < size:
            del self._spare[-1]
            self._unallocated += self.batch_bytes
        self._unallocated -= size
        claim.size = size

    def _wait_in_line(self, size: int, max_block_ms: float, claim: Claim, spare: bool) -> None:
        """Wait until `size` bytes are available and this thread is first in line, then take them; takes the lock."""
        waiter = Waiter(size)
        started = self._clock.monotonic_ms()
        try:
            with self.lock:
                if any(other.thread_id == waiter.thread_id for other in self._waiters):
                    raise IllegalStateError(REENTERED)  # it would wait for the frame that it interrupted
                self._waiters.append(waiter)
            while True:
                woken = waiter.woken = OneShotEvent()
                with self.lock:
                    if self._closed is not None:
                        raise self._closed
                    if self._waiters[0] is waiter and self.available_bytes >= size:
                        self._take(size, claim, spare)
                        return
                left = max_block_ms - (self._clock.monotonic_ms() - started)
                if left <= 0:
                    self._on_exhausted()
                    raise BufferExhaustedError(self._exhausted(size, max_block_ms))
                woken.wait(left / 1000)
        finally:
            with self.lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                # The next in line may take what is left, also when this thread got nothing.
                if self._waiters and self.available_bytes:
                    self._waiters[0].woken.set()
            self._on_wait(self._clock.monotonic_ms() - started)

    def _exhausted(self, size: int, max_block_ms: float) -> str:
        used = self.total_bytes - self.available_bytes
        reason = self._why_full()
        return (
            f"buffer exhausted: {used / MIB:.1f} of {self.total_bytes / MIB:g} MiB in use for "
            f"{max_block_ms / 1000:g} s (max.block.ms), {size} bytes requested, {self.available_bytes} free, "
            f"{len(self._waiters)} threads waiting"
            + (f"; {reason}" if reason else "")
            + "; raise buffer.memory or max.block.ms, or send more slowly"
        )

    def release(self, buffer: bytearray | None, size: int) -> None:
        """Return `size` bytes to the pool, with their buffer if there is one."""
        claim = Claim()
        claim.buffer, claim.size = buffer, size
        self.give_back(claim)

    def give_back(self, claim: Claim) -> None:
        """Return what is in the claim to the pool."""
        buffer, size = claim.buffer, claim.size
        spare = (buffer,) if buffer is not None and size == self.batch_bytes and len(buffer) == size else ()
        with self.lock:
            # No calls until the counters are updated: see Claim.
            claim.size = 0
            if spare:
                self._spare += spare
            else:
                self._unallocated += size
            if self._waiters:
                self._waiters[0].woken.set()

    def close(self, error: HeadraceError | None = None) -> None:
        """Fail all current and later waits with `error`."""
        with self.lock:
            self._closed = error or ClosedError("the producer was closed while waiting for buffer memory")
            for waiter in self._waiters:
                waiter.woken.set()
