"""The fetchers of a Python worker: Spark keeps the process for many tasks, and so are the connections kept.

take → a task reads, alone → give back → the next task takes it … or it is closed when nobody has come for a while
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.client.blocking import BlockingClient
from headrace.client.fetcher import Fetcher
from headrace.spark import consumer_options
from headrace.spark.source_options import SourceOptions

IDLE_SECONDS_MAX = 60.0
KEPT_MAX = 4
"""Of idle fetchers in a process; one that comes back beyond that is closed."""

_Key = tuple[object, ...]


class KeptFetcher:
    """A fetcher with the client it owns."""

    def __init__(self, options: SourceOptions) -> None:
        config = consumer_options.resolve(options.kafka)
        self.client = BlockingClient(consumer_options.client_settings(config, options.client_id))
        self.fetcher = Fetcher(self.client, **consumer_options.fetcher_arguments(config))

    def close(self) -> None:
        self.client.close()


class Fetchers:
    """Fetchers that are idle, by the options they were made from. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[_Key, list[KeptFetcher]] = {}  # Guarded by _lock.
        self._timer: threading.Timer | None = None  # Guarded by _lock.

    @contextmanager
    def taken(self, options: SourceOptions) -> Iterator[Fetcher]:
        """A fetcher for one user. After an error it is closed: who knows what state it is in."""
        # A child of a fork must not use the sockets of its parent.
        key = (os.getpid(), options.client_id, *sorted(options.kafka.items()))
        with self._lock:
            idle = self._idle.get(key)
            kept = idle.pop() if idle else None
        kept = kept or KeptFetcher(options)
        try:
            yield kept.fetcher
        except BaseException:
            kept.close()
            raise
        kept.fetcher.assign({}, check=False)
        self._keep(key, kept)

    def _keep(self, key: _Key, kept: KeptFetcher) -> None:
        with self._lock:
            if sum(map(len, self._idle.values())) < KEPT_MAX:
                self._idle.setdefault(key, []).append(kept)
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = threading.Timer(IDLE_SECONDS_MAX, self.close_idle)
                self._timer.daemon = True
                self._timer.start()
                return
        kept.close()

    def close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
            self._timer = None
        for kept in (kept for group in idle.values() for kept in group):
            kept.close()


FETCHERS = Fetchers()
"""Those of this process."""
