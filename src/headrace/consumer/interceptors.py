"""Interceptors: user code that sees the records that `poll` returns, and the offsets that were committed.

    poll → on_consume of each interceptor → application
    the group has committed offsets → on_commit, in the next call of the application

An exception of an interceptor is logged and counted; the records are returned anyway. Application thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.client.plugins import PluginKind, copy_methods, is_for_application
from headrace.config import Log
from headrace.types import OffsetAndMetadata, TopicPartition
from headrace.wire.layout import ConsumerRecord


class ConsumerInterceptor:
    """Base class of interceptors. Every method is optional."""

    def configure(self, config: Mapping[str, object]) -> None:
        """Called once, before anything else."""

    def on_consume(self, records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
        """Return the records that `poll` returns: these, or others. Not called without records."""
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Called with offsets that were committed."""

    def close(self) -> None:
        """Called once, with the consumer's `close`."""


class Interceptors:
    """The chain of interceptors. Their exceptions are logged and counted in `errors`."""

    def __init__(self, chain: Sequence[ConsumerInterceptor], log: Log) -> None:
        self._chain = tuple(chain)
        self._log = log
        self.errors = 0

    def __bool__(self) -> bool:
        return bool(self._chain)

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return the records that the interceptors return; one that fails is skipped."""
        for interceptor in self._chain:

            def consume(chained: ConsumerInterceptor) -> None:
                nonlocal records
                records = list(chained.on_consume(records))

            self._call(interceptor, "on_consume", consume)
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Pass committed offsets to the interceptors."""
        for interceptor in self._chain:
            self._call(interceptor, "on_commit", lambda chained: chained.on_commit(offsets))

    def _call(self, interceptor: ConsumerInterceptor, method: str, call: Callable[[ConsumerInterceptor], None]) -> None:
        try:
            call(interceptor)
        except BaseException as error:
            if is_for_application(error):
                raise
            self.errors += 1
            self._log.warning("%s.%s failed; continuing without it", _name(interceptor), method, exc_info=error)


class _AdaptedInterceptor(ConsumerInterceptor):
    """Wraps an object with some of an interceptor's methods."""

    def __init__(self, target: object) -> None:
        copy_methods(target, self, *_METHODS)
        self.adapted_name = type(target).__qualname__


def _name(interceptor: ConsumerInterceptor) -> str:
    return interceptor.adapted_name if isinstance(interceptor, _AdaptedInterceptor) else type(interceptor).__qualname__


_METHODS = ("configure", "on_consume", "on_commit", "close")


def _adapt(value: object) -> ConsumerInterceptor | None:
    return _AdaptedInterceptor(value) if any(hasattr(value, method) for method in _METHODS[1:3]) else None


KIND = PluginKind("interceptor", ConsumerInterceptor, adapt=_adapt)
