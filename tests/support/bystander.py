"""A well-behaved producer that runs next to a hostile peer, and measures its acknowledgement times."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from headrace.wire.layout import Record
from headrace.wire.records import encode
from tests.support.peers.connection import Connection

PAUSE_SECONDS = 0.005
JOIN_SECONDS_MAX = 60


class Bystander:
    """Writes small batches to a topic, on a separate connection and thread."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._connection = Connection(bootstrap)
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seconds: list[float] = []
        self.failure: BaseException | None = None

    def _run(self) -> None:
        data = bytes(encode([Record(0, 1, None, b"bystander", ())]))
        try:
            while not self._ended.is_set():
                began = time.monotonic()
                response = self._connection.produce(self._topic, data)
                self.seconds.append(time.monotonic() - began)
                assert response.error_code == 0, response
                self._ended.wait(PAUSE_SECONDS)
        except BaseException as error:
            self.failure = error

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(JOIN_SECONDS_MAX)
        self._connection.close()

    @property
    def p99_seconds(self) -> float:
        """The 99th percentile of the write times; raises if a write failed."""
        if self.failure is not None:
            raise AssertionError("the well-behaved producer failed") from self.failure
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)]
