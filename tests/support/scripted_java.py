"""Kafka's own producer for the writers of a run: tests/faults/java/ScriptedProducer.java, one process for all."""

from __future__ import annotations

import itertools
import queue
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from headrace.verify import Phase
from tests.support.chaos_clients import (
    BLOCK_MS,
    DELIVERY_MS,
    REQUEST_MS,
    TRANSACTION_MS,
    GaveUpError,
    MustAbortError,
    OnResult,
)
from tests.support.peers.java import JavaRunner

SOURCE = Path(__file__).parents[1] / "faults" / "java" / "ScriptedProducer.java"
CALL_SECONDS_MAX = 40.0
OFFSET_UNKNOWN, OUTCOME_UNKNOWN = -1, -2


class JavaProducers:
    """The process; it makes clients for writers."""

    def __init__(self, runner: JavaRunner, jars: Path, log: Path, transaction_ms: int = TRANSACTION_MS) -> None:
        self.transaction_ms = transaction_ms
        self._numbers = itertools.count(1)
        self._clients: dict[str, JavaProducer] = {}
        self._lock = threading.Lock()  # Guards the standard input.
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                runner.command(jars, SOURCE),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __call__(self, bootstrap: str, topic: str, transactional_id: str | None = None) -> JavaProducer:
        number = str(next(self._numbers))
        client = self._clients[number] = JavaProducer(self, number, topic)
        client.create(bootstrap, transactional_id)
        return client

    def write(self, line: str) -> None:
        """Write a command."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, _, rest = line.strip().partition(" ")
            if number in self._clients:
                self._clients[number].receive(rest)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # it ends with its standard input
        self._process.wait(CALL_SECONDS_MAX)
        self._reader.join(CALL_SECONDS_MAX)


class JavaProducer:
    """One producer, with the interface of chaos_clients.Client."""

    def __init__(self, process: JavaProducers, number: str, topic: str) -> None:
        self._process = process
        self._number = number
        self._topic = topic
        self._responses: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._callbacks: dict[str, OnResult] = {}

    def create(self, bootstrap: str, transactional_id: str | None) -> None:
        """Create the producer."""
        options = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": "true",
            "linger.ms": "2",
            "request.timeout.ms": str(REQUEST_MS),
            "delivery.timeout.ms": str(DELIVERY_MS),
            "max.block.ms": str(BLOCK_MS),
            "reconnect.backoff.max.ms": "500",
        }
        if transactional_id is not None:
            options |= {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": str(self._process.transaction_ms),
            }
        self._call("new", *(f"{name}={value}" for name, value in options.items()))

    def receive(self, text: str) -> None:
        """Take a response or a result. Called by the reader's thread."""
        word, _, rest = text.partition(" ")
        if word != "result":
            self._responses.put(text)
            return
        value, partition, offset = rest.rsplit(" ", 2)
        on_result = self._callbacks.pop(value)
        if int(offset) == OUTCOME_UNKNOWN:
            on_result(Phase.INFO, None, None)
        else:
            on_result(Phase.OK, int(partition), None if int(offset) == OFFSET_UNKNOWN else int(offset))

    def init(self) -> None:
        self._call("init")

    def begin(self) -> None:
        self._call("begin")

    def send(self, value: str, partition: int, on_result: OnResult) -> None:
        self._callbacks[value] = on_result
        self._call("send", self._topic, str(partition), value)

    def serve(self) -> None:
        pass  # callbacks run on the reader's thread

    def commit(self) -> None:
        self._call("commit")

    def abort(self) -> None:
        self._call("abort")

    def close(self) -> None:
        self._call("close")

    def _call(self, *words: str) -> None:
        self._process.write(" ".join((self._number, *words)))
        try:
            outcome, _, reason = self._responses.get(timeout=CALL_SECONDS_MAX).partition(" ")
        except queue.Empty:
            raise GaveUpError(f"no response to {words[0]} after {CALL_SECONDS_MAX} s") from None
        if outcome == "abort":
            raise MustAbortError(reason)
        if outcome != "ok":
            raise GaveUpError(reason)
