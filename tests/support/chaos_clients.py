"""Producers of several makes behind one interface, for writers that note what they were told.

What can go wrong is one of two things: `MustAbortError`, the transaction has to be aborted and the producer goes on;
`GaveUpError`, the producer is of no more use, and what was under way may have happened or not.
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
from tests.support.history import Outcome

REQUEST_MS = 2_000
DELIVERY_MS = 8_000
"""Short, so that some records are given up while a broker is away: their outcome is unknown then."""
LIBRDKAFKA_PLAIN = {"message.timeout.ms": 120_000, "max.in.flight.requests.per.connection": 1}
"""Without a transaction, librdkafka answers two things with a new epoch, under which it sends again what was on its
way, written or not: a record that it gives up, and a refusal of what came behind a lost request (its issue 4953). No
broker can know those records again. So it gives nothing up here, and sends one request at a time."""
BLOCK_MS = 6_000
TRANSACTION_MS = 15_000
CLOSE_SECONDS_MAX = 3.0
_POLL_SECONDS = 0.01
log = logging.getLogger("librdkafka")

Told: TypeAlias = Callable[[Outcome, int | None, int | None], None]
"""Called with the outcome of a record, its partition and offset; from any thread."""


class MustAbortError(Exception):
    """Abort, and go on."""


class GaveUpError(Exception):
    """Close it. The outcome of what it was asked last is not known."""


class Client(Protocol):
    """A producer; transactional if it was made with an id."""

    def init(self) -> None: ...

    def begin(self) -> None: ...

    def send(self, value: str, partition: int, told: Told) -> None: ...

    def serve(self) -> None:
        """Let callbacks be called, where that has to be asked for."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class MakeClient(Protocol):
    def __call__(self, bootstrap: str, topic: str, transactional_id: str | None = None) -> Client: ...


class OwnClient:
    """headrace's."""

    def __init__(self, bootstrap: str, topic: str, transactional_id: str | None = None) -> None:
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
            transaction_timeout_ms=TRANSACTION_MS,
            **options,
        )

    def init(self) -> None:
        with _named():
            self._producer.init_transactions()

    def begin(self) -> None:
        with _named():
            self._producer.begin_transaction()

    def send(self, value: str, partition: int, told: Told) -> None:
        def delivered(metadata: Any, error: Exception | None) -> None:
            if error is not None:
                told(Outcome.UNKNOWN, None, None)
            else:
                told(Outcome.DONE, metadata.partition, metadata.offset if metadata.offset >= 0 else None)

        with _named():
            self._producer.send(self._topic, value.encode(), partition=partition, on_delivery=delivered)

    def serve(self) -> None:
        pass  # it has a thread for them

    def commit(self) -> None:
        with _named():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _named():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(CLOSE_SECONDS_MAX)


@contextmanager
def _named() -> Any:
    try:
        yield
    except AbortableError as error:
        raise MustAbortError(str(error)) from error
    except HeadraceError as error:
        raise GaveUpError(str(error)) from error


class ConfluentClient:
    """librdkafka's, by way of confluent-kafka.

    A fatal error is raised from whatever calls back, and calling back goes on with it set: Python then sees a
    SystemError, and a callback may be lost. It stands for the fatal error here.
    """

    def __init__(self, bootstrap: str, topic: str, transactional_id: str | None = None) -> None:
        self._topic = topic
        options: dict[str, object] = {**LIBRDKAFKA_PLAIN}
        if transactional_id is not None:
            options = {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_MS,
                "message.timeout.ms": DELIVERY_MS,
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

    def send(self, value: str, partition: int, told: Told) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                told(Outcome.UNKNOWN, None, None)
            else:
                told(Outcome.DONE, message.partition(), message.offset())  # None if the broker had it already

        try:
            self._producer.produce(self._topic, value.encode(), partition=partition, on_delivery=delivered)
        except KafkaException as error:
            raise _judged(error) from error
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
        with suppress(KafkaException, SystemError):  # it was fenced, and says so again
            self._producer.flush(CLOSE_SECONDS_MAX)
        with suppress(KafkaException, SystemError):
            self._producer.purge()
            self._producer.flush(CLOSE_SECONDS_MAX)

    def _call(self, call: Callable[[float], object]) -> None:
        """Again while librdkafka says that this is the thing to do, and there is time."""
        deadline = time.monotonic() + BLOCK_MS / 1000
        while True:
            try:
                call(max(0.1, deadline - time.monotonic()))
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise _judged(error) from error
                time.sleep(_POLL_SECONDS)
            except SystemError as error:
                raise GaveUpError(str(error)) from error


def _judged(error: KafkaException) -> Exception:
    cause = error.args[0]
    return MustAbortError(str(cause)) if cause.txn_requires_abort() else GaveUpError(str(cause))
