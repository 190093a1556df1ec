"""Producers of several client libraries behind one interface, for the writers of a chaos run.

Calls raise one of two errors. `MustAbortError`: the transaction must be aborted, and the producer can be used again.
`GaveUpError`: the producer must be closed, and the outcome of its last calls is unknown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeAlias

from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer

from headrace import AbortableError, HeadraceError, Producer
from headrace.verify import Phase

REQUEST_MS = 2_000
DELIVERY_MS = 8_000
"""Short, so that some records time out while a broker is down: their outcome is then unknown."""
LIBRDKAFKA_PLAIN = {"message.timeout.ms": 120_000, "max.in.flight.requests.per.connection": 1}
"""Without a transaction, librdkafka bumps its epoch and resends records in flight, written or not, in two cases: when a
record times out, and when the broker refuses a batch after a lost request (its issue 4953). Brokers cannot recognise
such duplicates. So its records do not time out here, and it has one request in flight."""
BLOCK_MS = 6_000
TRANSACTION_MS = 15_000
CLOSE_SECONDS_MAX = 3.0
_POLL_SECONDS = 0.01
log = logging.getLogger("librdkafka")

OnResult: TypeAlias = Callable[[Phase, int | None, int | None], None]
"""Called with the outcome of a record, its partition and offset; from any thread."""


class MustAbortError(Exception):
    """The transaction must be aborted; the producer can be used again."""


class GaveUpError(Exception):
    """The producer must be closed; the outcome of its last calls is unknown."""


class Client(Protocol):
    """A producer; transactional if it was created with an id."""

    def init(self) -> None: ...

    def begin(self) -> None: ...

    def send(self, value: str, partition: int, on_result: OnResult) -> None: ...

    def serve(self) -> None:
        """Run callbacks, if the library does not do so on a thread."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class ClientFactory(Protocol):
    def __call__(self, bootstrap: str, topic: str, transactional_id: str | None = None) -> Client: ...


class HeadraceClient:
    """headrace's producer."""

    def __init__(
        self, bootstrap: str, topic: str, transactional_id: str | None = None, *, transaction_ms: int = TRANSACTION_MS
    ) -> None:
        self._topic = topic
        options: dict[str, Any] = {} if transactional_id is None else {"transactional_id": transactional_id}
        self._producer = Producer(
            bootstrap_servers=bootstrap,
            acks="all",
            linger_ms=2,
            batch_size=1_000,
            request_timeout_ms=REQUEST_MS,
            delivery_timeout_ms=DELIVERY_MS,
            max_block_ms=BLOCK_MS,
            transaction_timeout_ms=transaction_ms,
            **options,
        )

    def init(self) -> None:
        with _client_errors():
            self._producer.init_transactions()

    def begin(self) -> None:
        with _client_errors():
            self._producer.begin_transaction()

    def send(self, value: str, partition: int, on_result: OnResult) -> None:
        def delivered(metadata: Any, error: Exception | None) -> None:
            if error is not None:
                on_result(Phase.INFO, None, None)
            else:
                on_result(Phase.OK, metadata.partition, metadata.offset if metadata.offset >= 0 else None)

        with _client_errors():
            self._producer.send(self._topic, value.encode(), partition=partition, on_delivery=delivered)

    def serve(self) -> None:
        pass  # callbacks run on its thread

    def commit(self) -> None:
        with _client_errors():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _client_errors():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(CLOSE_SECONDS_MAX)


@contextmanager
def _client_errors() -> Any:
    try:
        yield
    except AbortableError as error:
        raise MustAbortError(str(error)) from error
    except HeadraceError as error:
        raise GaveUpError(str(error)) from error


class ConfluentClient:
    """librdkafka's producer, with confluent-kafka.

    confluent-kafka sets a fatal error as an exception and continues to call callbacks: Python then raises SystemError,
    and a callback may be lost. SystemError counts as a fatal error here.
    """

    def __init__(
        self, bootstrap: str, topic: str, transactional_id: str | None = None, *, transaction_ms: int = TRANSACTION_MS
    ) -> None:
        self._topic = topic
        options: dict[str, object] = {**LIBRDKAFKA_PLAIN}
        if transactional_id is not None:
            options = {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": transaction_ms,
                "message.timeout.ms": min(DELIVERY_MS, transaction_ms),  # no longer than the other
            }
        self._producer = ConfluentProducer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "socket.timeout.ms": REQUEST_MS * 2,
                "request.timeout.ms": REQUEST_MS,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
                **options,
            },
            logger=log,
        )

    def init(self) -> None:
        self._call(self._producer.init_transactions)

    def begin(self) -> None:
        self._call(lambda _: self._producer.begin_transaction())

    def send(self, value: str, partition: int, on_result: OnResult) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                on_result(Phase.INFO, None, None)
            else:
                on_result(Phase.OK, message.partition(), message.offset())  # None for a duplicate

        try:
            self._producer.produce(self._topic, value.encode(), partition=partition, on_delivery=delivered)
        except KafkaException as error:
            raise _client_error(error) from error
        except BufferError as error:
            raise GaveUpError(str(error)) from error
        self.serve()

    def serve(self) -> None:
        try:
            self._producer.poll(0)
        except (KafkaException, SystemError) as error:
            raise GaveUpError(str(error)) from error

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        with suppress(KafkaException, SystemError):  # a fenced producer raises again
            self._producer.flush(CLOSE_SECONDS_MAX)
        with suppress(KafkaException, SystemError):
            self._producer.purge()
            self._producer.flush(CLOSE_SECONDS_MAX)

    def _call(self, call: Callable[[float], object]) -> None:
        """Call, and retry retriable errors until the deadline."""
        deadline = time.monotonic() + BLOCK_MS / 1000
        while True:
            try:
                call(max(0.1, deadline - time.monotonic()))
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise _client_error(error) from error
                time.sleep(_POLL_SECONDS)
            except SystemError as error:
                raise GaveUpError(str(error)) from error


def _client_error(error: KafkaException) -> Exception:
    cause = error.args[0]
    return MustAbortError(str(cause)) if cause.txn_requires_abort() else GaveUpError(str(cause))
