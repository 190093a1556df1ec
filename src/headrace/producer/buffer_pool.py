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
from headrace.errors import BufferExhaustedError, ClosedError, RecordTooLargeError

MIB = 1024 * 1024
PASSED_MAX = 32  # how often others may go before the first in line


class Turn(threading.Condition):
    """A thread's place in the line."""

    def __init__(self, lock: threading.Lock, size: int) -> None:
        super().__init__(lock)
        self.size = size
        self.passed = 0

    def let_pass(self, size: int) -> bool:
        """True if another thread may take so much first. A large request never waits for small ones."""
        if size < self.size or self.passed >= PASSED_MAX:
            return False
        self.passed += 1
        return True


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
        self._lock = threading.Lock()
        self._spare: list[bytearray] = []  # Guarded by _lock: buffers of batch_bytes, counted as available.
        self._unallocated = total_bytes  # Guarded by _lock: available beyond the spare buffers.
        self._waiters: deque[Turn] = deque()  # Guarded by _lock.
        self._closed = False  # Guarded by _lock.

    @property
    def available_bytes(self) -> int:
        return self._unallocated + len(self._spare) * self.batch_bytes

    @property
    def waiting_threads(self) -> int:
        return len(self._waiters)

    def allocate(self, size: int, max_block_ms: float) -> bytearray:
        """A buffer of `size` bytes, after waiting up to `max_block_ms` for others to be given back."""
        return self.reserve(size, max_block_ms, spare=size == self.batch_bytes) or bytearray(size)

    def reserve(self, size: int, max_block_ms: float, *, spare: bool = False) -> bytearray | None:
        """Count `size` bytes as used; gives a buffer to use again if there is one and `spare` allows."""
        if size > self.total_bytes:
            raise RecordTooLargeError(
                f"a batch of {size} bytes is larger than buffer.memory ({self.total_bytes}): "
                f"send smaller records or raise buffer.memory"
            )
        with self._lock:
            self._check_open()
            if self.available_bytes < size or (self._waiters and not self._waiters[0].let_pass(size)):
                self._wait_for(size, max_block_ms)
            if spare and self._spare:
                return self._spare.pop()
            while self._unallocated < size:
                self._spare.pop()
                self._unallocated += self.batch_bytes
            self._unallocated -= size
        return None

    def _wait_for(self, size: int, max_block_ms: float) -> None:
        """Wait in line until `size` bytes are there and it is our turn. The lock is held on entry and on exit."""
        turn = Turn(self._lock, size)
        self._waiters.append(turn)
        started = self._clock.monotonic_ms()
        try:
            while self._waiters[0] is not turn or self.available_bytes < size:
                left = max_block_ms - (self._clock.monotonic_ms() - started)
                if left <= 0:
                    self._on_exhausted()
                    raise BufferExhaustedError(self._exhausted(size, max_block_ms))
                turn.wait(left / 1000)
                self._check_open()
        finally:
            self._waiters.remove(turn)
            # Whatever is still free belongs to the next in line, also when we leave empty-handed.
            if self._waiters and self.available_bytes:
                self._waiters[0].notify()
            self._on_wait(self._clock.monotonic_ms() - started)

    def _exhausted(self, size: int, max_block_ms: float) -> str:
        used = self.total_bytes - self.available_bytes
        because = self._why_full()
        return (
            f"buffer full: {used / MIB:.1f} of {self.total_bytes / MIB:g} MiB for {max_block_ms / 1000:g} s, "
            f"{size} bytes wanted, {len(self._waiters)} threads waiting"
            + (f"; {because}" if because else "")
            + "; raise buffer.memory or max.block.ms, or send more slowly"
        )

    def release(self, buffer: bytearray | None, size: int) -> None:
        """Take back a buffer that was allocated with `size`, or the count of what was only reserved."""
        with self._lock:
            if buffer is not None and size == self.batch_bytes and len(buffer) == size:
                self._spare.append(buffer)
            else:
                self._unallocated += size
            if self._waiters:
                self._waiters[0].notify()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the producer was closed while waiting for buffer memory")

    def close(self) -> None:
        """Whoever waits is told that there is nothing to wait for."""
        with self._lock:
            self._closed = True
            for turn in self._waiters:
                turn.notify()
