"""What a reader of committed records sees while it happens: rows, counted; and what is written and not yet seen.

VisibleRows   a thread that reads the topic from its beginning and counts; brokers may come and go meanwhile
OpenRecords   how many records lie behind an open transaction right now
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from headrace.client.blocking import BlockingClient, ClientSettings
from headrace.client.fetcher import Fetcher
from headrace.client.offsets import LATEST, Isolation, list_offsets
from headrace.errors import HeadraceError
from headrace.types import TopicPartition

POLL_MS = 100
RETRY_SECONDS = 0.1
UNREADABLE_SECONDS_MAX = 60.0
SAMPLE_SECONDS = 0.2
SAMPLES_MAX = 5_000
JOIN_SECONDS_MAX = 10.0
ASK_MS_MAX = 1_000
"""How long a broker may take to answer before it counts as gone: the time-out for the clients of both."""


class Sample(NamedTuple):
    """At a time, on the monotonic clock, so many rows were visible."""

    at_s: float
    rows: int


class VisibleRows:
    """Counts what a read_committed reader is given."""

    def __init__(self, settings: ClientSettings, partitions: Sequence[TopicPartition]) -> None:
        self._settings = settings
        self._positions = dict.fromkeys(partitions, 0)  # Reading thread only.
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-demo-reader", daemon=True)
        self.count = 0
        self.samples: list[Sample] = []
        self.error: HeadraceError | None = None

    def grown_after(self, monotonic_s: float) -> float | None:
        """When rows were first seen after that time; None if there were none yet."""
        samples = list(self.samples)
        for before, sample in itertools.pairwise(samples):
            if sample.at_s > monotonic_s and sample.rows > before.rows:
                return sample.at_s
        return None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(JOIN_SECONDS_MAX)

    def _run(self) -> None:
        failing_since_s: float | None = None
        while not self._over.is_set():
            try:
                with BlockingClient(self._settings) as client:
                    fetcher = Fetcher(client, max_wait_ms=POLL_MS)
                    fetcher.assign(self._positions)
                    failing_since_s = None
                    self._count(fetcher)
            except HeadraceError as error:
                failing_since_s = failing_since_s or time.monotonic()
                if time.monotonic() - failing_since_s > UNREADABLE_SECONDS_MAX:
                    self.error = error
                    return
                self._sample()
                self._over.wait(RETRY_SECONDS)

    def _count(self, fetcher: Fetcher) -> None:
        while not self._over.is_set():
            for tp, batches in fetcher.poll_batches(POLL_MS).items():
                self.count += sum(batch.header.record_count for batch in batches)
                self._positions[tp] = fetcher.position(tp)
            self._sample()

    def _sample(self) -> None:
        """A point where the curve bends, and one now and then where it does not."""
        now_s = time.monotonic()
        last = self.samples[-1] if self.samples else None
        if last is None or self.count != last.rows or now_s - last.at_s >= SAMPLE_SECONDS:
            self.samples.append(Sample(now_s, self.count))
        if len(self.samples) > SAMPLES_MAX:
            del self.samples[1:-1:2]


class OpenRecords:
    """Records that are written, and that a reader of committed ones does not see yet."""

    def __init__(self, settings: ClientSettings, partitions: Sequence[TopicPartition]) -> None:
        self._client = BlockingClient(settings)
        self._wanted = dict.fromkeys(partitions, LATEST)

    def count(self) -> int:
        """0 also if no broker answers."""
        with suppress(HeadraceError):
            # In this order: what is committed between the two questions does not count as open.
            ends = list_offsets(self._client, self._wanted, Isolation.READ_UNCOMMITTED)
            stable = list_offsets(self._client, self._wanted, Isolation.READ_COMMITTED)
            return sum(max(0, ends[tp].offset - stable[tp].offset) for tp in self._wanted)
        return 0

    def close(self) -> None:
        self._client.close()
