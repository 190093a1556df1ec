"""The producer's memory: a fixed number of bytes, handed out as buffers and taken back.

Buffers of the size of a batch are kept and used again; the rest is only counted. Threads that have to wait are served
in the order in which they came, so that a large request is not starved by small ones. With one exception: memory that
would do for the first in line, who has been told of it but has yet to wake up, may be taken by a thread that is
running, a few times. To change threads for every single batch would cost more than to fill it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from headrace.client.clock import Clock
from headrace.client.locks import REENTERED, OneShotEvent, OwnedLock
from headrace.errors import BufferExhaustedError, ClosedError, HeadraceError, IllegalStateError, RecordTooLargeError

MIB = 1024 * 1024
PASSED_MAX = 32  # how often others may go before the first in line


class Turn:
    """A thread's place in the line."""

    __slots__ = ("passed", "size", "thread_id", "woken")

    def __init__(self, size: int) -> None:
        self.size = size
        self.thread_id = threading.get_ident()
        self.passed = 0
        self.woken = OneShotEvent()  # Replaced by the thread that waits, before each look.

    def let_pass(self, size: int) -> bool:
        """True if another thread may take so much first. A large request never waits for small ones."""
        if size < self.size or self.passed >= PASSED_MAX:
            return False
        self.passed += 1
        return True


class Claim:
    """Memory that was taken from the pool and has no other owner yet: `size` bytes, and perhaps a buffer.

    It is written in the same step as the pool's own count, without a call in between. So a signal handler that raises
    cannot make memory disappear: who made the claim gives back what is in it.
    """

    # Defaults on the class: one is made for every batch.
    size = 0
    buffer: bytearray | None = None


class BufferPool:
    """`buffer.memory` bytes. Any thread."""

    def __init__(
        self,
        total_bytes: int,
        batch_bytes: int,
        clock: Clock,
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
        self._waiters: deque[Turn] = deque()  # Guarded by lock.
        self._closed: HeadraceError | None = None  # Guarded by lock: what all who wait are told.

    @property
    def available_bytes(self) -> int:
        return self._unallocated + len(self._spare) * self.batch_bytes

    @property
    def waiting_threads(self) -> int:
        return len(self._waiters)

    def allocate(self, size: int, max_block_ms: float, claim: Claim | None = None) -> bytearray:
        """A buffer of `size` bytes, after waiting up to `max_block_ms` for others to be given back."""
        claim = claim or Claim()
        self.reserve(size, max_block_ms, claim, spare=size == self.batch_bytes)
        if claim.buffer is None:
            claim.buffer = bytearray(size)
        return claim.buffer

    def reserve(self, size: int, max_block_ms: float, claim: Claim, *, spare: bool = False) -> None:
        """Count `size` bytes as used; `claim` gets a buffer to use again if there is one and `spare` allows."""
        if size > self.total_bytes:
            raise RecordTooLargeError(
                f"a batch of {size} bytes is larger than buffer.memory ({self.total_bytes}): "
                f"send smaller records or raise buffer.memory"
            )
        self.lock.check_not_owned()
        with self.lock:
            if self._closed is not None:
                raise self._closed
            if self.available_bytes >= size and (not self._waiters or self._waiters[0].let_pass(size)):
                self._take(size, claim, spare)
                return
        self._wait_in_line(size, max_block_ms, claim, spare)

    def _take(self, size: int, claim: Claim, spare: bool) -> None:
        """Move `size` bytes to the claim. The lock is held, and they are there."""
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
        """Wait until `size` bytes are there and it is our turn, then take them. The lock is not held."""
        turn = Turn(size)
        started = self._clock.monotonic_ms()
        try:
            with self.lock:
                if any(waiter.thread_id == turn.thread_id for waiter in self._waiters):
                    raise IllegalStateError(REENTERED)  # it would wait behind the frame that it has interrupted
                self._waiters.append(turn)
            while True:
                woken = turn.woken = OneShotEvent()
                with self.lock:
                    if self._closed is not None:
                        raise self._closed
                    if self._waiters[0] is turn and self.available_bytes >= size:
                        self._take(size, claim, spare)
                        return
                left = max_block_ms - (self._clock.monotonic_ms() - started)
                if left <= 0:
                    self._on_exhausted()
                    raise BufferExhaustedError(self._exhausted(size, max_block_ms))
                woken.wait(left / 1000)
        finally:
            with self.lock:
                if turn in self._waiters:
                    self._waiters.remove(turn)
                # Whatever is still free belongs to the next in line, also when we leave empty-handed.
                if self._waiters and self.available_bytes:
                    self._waiters[0].woken.set()
            self._on_wait(self._clock.monotonic_ms() - started)

    def _exhausted(self, size: int, max_block_ms: float) -> str:
        used = self.total_bytes - self.available_bytes
        because = self._why_full()
        return (
            f"buffer full: {used / MIB:.1f} of {self.total_bytes / MIB:g} MiB for {max_block_ms / 1000:g} s, "
            f"{size} bytes wanted, {self.available_bytes} free, {len(self._waiters)} threads waiting"
            + (f"; {because}" if because else "")
            + "; raise buffer.memory or max.block.ms, or send more slowly"
        )

    def release(self, buffer: bytearray | None, size: int) -> None:
        """Take back a buffer that was allocated with `size`, or the count of what was only reserved."""
        claim = Claim()
        claim.buffer, claim.size = buffer, size
        self.give_back(claim)

    def give_back(self, claim: Claim) -> None:
        """Take back what is in the claim: nobody has become its owner."""
        buffer, size = claim.buffer, claim.size
        spare = (buffer,) if buffer is not None and size == self.batch_bytes and len(buffer) == size else ()
        with self.lock:
            # No call until it is done: see Claim.
            claim.size = 0
            if spare:
                self._spare += spare
            else:
                self._unallocated += size
            if self._waiters:
                self._waiters[0].woken.set()

    def close(self, error: HeadraceError | None = None) -> None:
        """Tell all who wait, or begin to, that there is nothing to wait for."""
        with self.lock:
            self._closed = error or ClosedError("the producer was closed while waiting for buffer memory")
            for turn in self._waiters:
                turn.woken.set()
