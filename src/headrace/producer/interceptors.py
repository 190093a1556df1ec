"""Interceptors: user code that sees every record before anything else, and hears how it ended.

    send(record) → on_send, one after the other → …
    acknowledged or failed in flight → on_acknowledgement;  failed before it was queued → on_send_error

Nothing an interceptor does can break a send.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from headrace.config import Log
from headrace.producer.batch import Delivery
from headrace.producer.plugins import PluginKind, is_for_application
from headrace.producer.records import UNKNOWN_PARTITION, ProducerRecord, RecordMetadata

log = logging.getLogger("headrace")


class ProducerInterceptor:
    """To be subclassed; every method may be left out."""

    def configure(self, config: Mapping[str, object]) -> None:
        """Called once, before anything else."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record to go on with: this one, or another. Called by the thread that sends."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """The record was acknowledged (`error` is None) or failed. Called by the I/O thread: be quick."""

    def on_send_error(self, record: ProducerRecord, partition: int | None, error: Exception) -> None:
        """The record failed before it was queued. Unless overridden, `on_acknowledgement` hears of it too."""
        known = UNKNOWN_PARTITION if partition is None else partition
        self.on_acknowledgement(RecordMetadata(record.topic, known), error)

    def close(self) -> None:
        """Called once, with the producer's `close`."""


class Interceptors:
    """The chain. What one of them throws is logged and counted in `errors`."""

    __slots__ = ("_chain", "_log", "errors")

    def __init__(self, chain: Sequence[ProducerInterceptor], log: Log = log) -> None:
        self._chain = tuple(chain)
        self._log = log
        self.errors = 0  # Statistics only: an increment lost between threads does no harm.

    def __bool__(self) -> bool:
        return bool(self._chain)

    def names(self) -> list[str]:
        return [_name(interceptor) for interceptor in self._chain]

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record as the interceptors leave it; one that fails is passed over."""
        for interceptor in self._chain:
            try:
                changed = interceptor.on_send(record)
                if not isinstance(changed, ProducerRecord):
                    raise TypeError(f"on_send must return a ProducerRecord, got {type(changed).__name__}")
            except BaseException as error:
                if is_for_application(error):
                    raise
                self._failed(interceptor, "on_send", record.topic, error)
            else:
                record = changed
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None = None) -> None:
        """Tell everybody how a queued record ended."""
        self._tell(metadata.topic, "on_acknowledgement", lambda one: one.on_acknowledgement(metadata, error))

    def on_send_error(self, record: ProducerRecord, partition: int | None, error: Exception) -> None:
        """Tell everybody of a record that was not queued, with its partition as far as it is known."""
        self._tell(record.topic, "on_send_error", lambda one: one.on_send_error(record, partition, error))

    def _tell(self, topic: str, method: str, call: Callable[[ProducerInterceptor], None]) -> None:
        for interceptor in self._chain:
            try:
                call(interceptor)
            except BaseException as error:
                if is_for_application(error):
                    raise
                self._failed(interceptor, method, topic, error)

    def _failed(self, interceptor: ProducerInterceptor, method: str, topic: str, error: BaseException) -> None:
        self.errors += 1
        self._log.warning(
            "%s.%s failed for a record of topic %s; the record goes on without it",
            _name(interceptor),
            method,
            topic,
            exc_info=error,
        )


class InterceptorCallback:
    """The callback of a record that was intercepted: tells the chain how it ended, then whoever sent it."""

    __slots__ = ("_chain", "_record", "on_delivery", "partition")

    def __init__(self, chain: Interceptors, record: ProducerRecord, on_delivery: Delivery | None) -> None:
        self._chain = chain
        self._record = record
        self.on_delivery = on_delivery
        self.partition = record.partition
        """As far as it is known; the partitioner may find it later than this is made."""

    def __call__(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        if metadata is None:
            partition = UNKNOWN_PARTITION if self.partition is None else self.partition
            told = RecordMetadata(self._record.topic, partition)
        else:
            told = metadata
        self._chain.on_acknowledgement(told, error)
        if self.on_delivery is not None:
            self.on_delivery(metadata, error)

    def refused(self, error: Exception) -> None:
        """The record was not queued. Who sent it gets the error from `send`, or as Kafka's producer tells it."""
        self._chain.on_send_error(self._record, self.partition, error)


class _Adapted(ProducerInterceptor):
    """An object with some of an interceptor's methods, which owes nothing to the base class."""

    def __init__(self, target: object) -> None:
        for method in _METHODS:
            if hasattr(target, method):
                setattr(self, method, getattr(target, method))
        self.adapted_name = type(target).__qualname__


def _name(interceptor: ProducerInterceptor) -> str:
    return interceptor.adapted_name if isinstance(interceptor, _Adapted) else type(interceptor).__qualname__


_METHODS = ("configure", "on_send", "on_acknowledgement", "on_send_error", "close")


def _adapt(value: object) -> ProducerInterceptor | None:
    return _Adapted(value) if any(hasattr(value, method) for method in _METHODS[1:4]) else None


KIND = PluginKind("interceptor", ProducerInterceptor, adapt=_adapt)
