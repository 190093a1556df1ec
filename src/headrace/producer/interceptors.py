"""Interceptors: user code that sees every record before it is sent, and its result.

    send(record) → on_send of each interceptor → …
    acknowledged, or failed after it was queued → on_acknowledgement;  failed before → on_send_error

An exception of an interceptor is logged and counted; the record is sent anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from headrace.client.plugins import PluginKind, copy_methods, is_for_application
from headrace.config import Log
from headrace.producer.records import UNKNOWN_PARTITION, Delivery, ProducerRecord, RecordMetadata

log = logging.getLogger("headrace")


class ProducerInterceptor:
    """Base class of interceptors. Every method is optional."""

    def configure(self, config: Mapping[str, object]) -> None:
        """Called once, before anything else."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to send: this one, or another. Called on the thread that sends."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """Called when the record was acknowledged (`error` is None) or failed, on the I/O thread: return quickly."""

    def on_send_error(self, record: ProducerRecord, partition: int | None, error: Exception) -> None:
        """Called when the record failed before it was queued. The default calls `on_acknowledgement`."""
        metadata = RecordMetadata(record.topic, UNKNOWN_PARTITION if partition is None else partition)
        self.on_acknowledgement(metadata, error)

    def close(self) -> None:
        """Called once, with the producer's `close`."""


class Interceptors:
    """The chain of interceptors. Their exceptions are logged and counted in `errors`."""

    __slots__ = ("_chain", "_log", "errors")

    def __init__(self, chain: Sequence[ProducerInterceptor], log: Log = log) -> None:
        self._chain = tuple(chain)
        self._log = log
        self.errors = 0  # A statistic: increments may be lost between threads.

    def __bool__(self) -> bool:
        return bool(self._chain)

    def names(self) -> list[str]:
        return [_name(interceptor) for interceptor in self._chain]

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record that the interceptors return; one that fails is skipped."""
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
        """Pass the result of a queued record to the interceptors."""
        self._call(metadata.topic, "on_acknowledgement", lambda chained: chained.on_acknowledgement(metadata, error))

    def on_send_error(self, record: ProducerRecord, partition: int | None, error: Exception) -> None:
        """Pass the error of a record that was not queued to the interceptors."""
        self._call(record.topic, "on_send_error", lambda chained: chained.on_send_error(record, partition, error))

    def _call(self, topic: str, method: str, call: Callable[[ProducerInterceptor], None]) -> None:
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
            "%s.%s failed for a record to topic %s; the record is sent anyway",
            _name(interceptor),
            method,
            topic,
            exc_info=error,
        )


class InterceptorCallback:
    """The delivery callback of an intercepted record: calls the interceptors, then the application's callback."""

    __slots__ = ("_chain", "_record", "on_delivery", "partition")

    def __init__(self, chain: Interceptors, record: ProducerRecord, on_delivery: Delivery | None) -> None:
        self._chain = chain
        self._record = record
        self.on_delivery = on_delivery
        self.partition = record.partition
        """None until the partitioner has chosen it."""

    def __call__(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        partition = UNKNOWN_PARTITION if self.partition is None else self.partition
        self._chain.on_acknowledgement(metadata or RecordMetadata(self._record.topic, partition), error)
        if self.on_delivery is not None:
            self.on_delivery(metadata, error)

    def refused(self, error: Exception) -> None:
        """Pass the error of a record that was not queued to the interceptors only."""
        self._chain.on_send_error(self._record, self.partition, error)


class _AdaptedInterceptor(ProducerInterceptor):
    """Wraps an object with some of an interceptor's methods."""

    def __init__(self, target: object) -> None:
        copy_methods(target, self, *_METHODS)
        self.adapted_name = type(target).__qualname__


def _name(interceptor: ProducerInterceptor) -> str:
    return interceptor.adapted_name if isinstance(interceptor, _AdaptedInterceptor) else type(interceptor).__qualname__


_METHODS = ("configure", "on_send", "on_acknowledgement", "on_send_error", "close")


def _adapt(value: object) -> ProducerInterceptor | None:
    return _AdaptedInterceptor(value) if any(hasattr(value, method) for method in _METHODS[1:4]) else None


KIND = PluginKind("interceptor", ProducerInterceptor, adapt=_adapt)
