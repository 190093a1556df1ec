"""Dispatch: frame → header → request → handler → response → buffers.

Every failure ends in a response or a closed connection, so that no client waits forever:

    malformed or unsupported request              the connection is closed, with a log line
    ApiVersions of an unsupported version         the supported versions, in version 0 (KIP-511)
    unexpected exception in a handler             logged with traceback; UNKNOWN_SERVER_ERROR if the response has an
                                                  error code, otherwise the connection is closed
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Coroutine
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from headrace.broker.context import Context, HandlerResult
from headrace.broker.error_responses import mirrored_error
from headrace.broker.faults import CloseConnection
from headrace.broker.handlers import SUPPORTED, failure_handler, supported
from headrace.broker.handlers.single_batch import append_single_batch
from headrace.errors import BrokerError, Code, MalformedError
from headrace.wire.api import ApiKey, api_name, response_class
from headrace.wire.frames import (
    RequestHeader,
    decode_request_body,
    decode_request_header,
    encode_response,
)
from headrace.wire.primitives import Buffer
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.security.sasl import SaslAuthentication
    from headrace.broker.server.connection import ServerConnection
    from headrace.wire.api.fetch import FetchRequest, FetchResponse
    from headrace.wire.api.produce import ProduceResponse

log = logging.getLogger("headrace.broker")

_int32 = struct.Struct(">i")
_PRODUCE = int(ApiKey.PRODUCE)
_FETCH = int(ApiKey.FETCH)
_ABANDONABLE = frozenset({ApiKey.FETCH, ApiKey.CATALOG_FETCH})
"""Read-only requests, which are cancelled when the connection is closed."""


class DelayedResponse(NamedTuple):
    """A response that is not available yet."""

    response: Coroutine[Any, Any, list[Buffer] | None]
    abandonable: bool


class _Call(NamedTuple):
    """A request in progress."""

    connection: ServerConnection
    context: Context
    request: Message
    request_bytes: int
    started: float

    @property
    def name(self) -> str:
        return f"{api_name(self.context.api_key)} v{self.context.api_version}"


class Dispatcher:
    """Calls the handlers of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._produces = broker.statistics.request(_PRODUCE)

    def __call__(self, connection: ServerConnection, frame: Buffer) -> list[Buffer] | DelayedResponse | None:
        """Handle a request; return the response, or None if there is none or the connection is being closed."""
        sasl = connection.sasl
        if sasl is not None and sasl.expects_token:
            return DelayedResponse(self._bare_token(connection, sasl, frame), abandonable=True)
        try:
            header, pos = decode_request_header(frame)
            versions = SUPPORTED.get(header[0]) or supported(header[0])
            if versions is None or not versions[0] <= header[1] <= versions[1]:
                return self._unsupported(connection, header)
            if sasl is not None and not sasl.admits(header[0]):
                connection.close(f"{api_name(header[0])} without authentication, or after the session has expired")
                return None
            broker = self._broker
            started = perf_counter()
            if header[0] == _PRODUCE and not (broker.faults.active or broker.quotas.active):
                response = append_single_batch(broker, connection.session, header, frame, pos)
                if response is not None:
                    self._produces.record(perf_counter() - started)
                    return [response]
            request = decode_request_body(header, frame, pos)
        except MalformedError as error:
            connection.close(str(error))
            return None
        context = Context(connection.session, header[0], header[1], header[3], header[2])
        try:
            handle = broker.handler(header[0])
            if broker.faults.active and (fault := broker.faults.match(context, request)) is not None:
                result: HandlerResult = fault.run(context, request, partial(handle, broker, context, request))
            else:
                result = handle(broker, context, request)
            if isinstance(result, Message) and not broker.quotas.active:  # the common case
                buffers = encode_response(result, header[1], header[2])
                self._record(header[0], request, result, started)
                return buffers
        except Exception as error:
            return self._failed(_Call(connection, context, request, len(frame), started), error)
        if result is None:
            broker.statistics.request(header[0]).record(perf_counter() - started)
            return None
        call = _Call(connection, context, request, len(frame), started)
        if isinstance(result, Message):
            return self._finish(call, result, perf_counter())
        if header[0] == ApiKey.PRODUCE:
            call = call._replace(request=_without_records(request))
        return DelayedResponse(self._await(call, result, perf_counter()), header[0] in _ABANDONABLE)

    async def _bare_token(
        self, connection: ServerConnection, sasl: SaslAuthentication, frame: Buffer
    ) -> list[Buffer] | None:
        """Handle a token without a request header, as after SaslHandshake v0; the response has no header either."""
        try:
            token = await sasl.bare_token(bytes(frame))
        except BrokerError as error:
            connection.close(str(error))
            return None
        return [_int32.pack(len(token)), token]

    async def _await(self, call: _Call, result: Awaitable[Message | None], ended: float) -> list[Buffer] | None:
        try:
            response = await result
        except Exception as error:
            return self._failed(call, error)
        if response is None:
            self._broker.statistics.request(call.context.api_key).record(perf_counter() - call.started)
            return None
        return self._finish(call, response, ended)  # for quotas, the time of waiting is not request time

    def _record(self, api_key: int, request: Message, response: Message, started: float) -> None:
        """Count a request, the errors in its response, and what its topics were sent."""
        statistics, topics = self._broker.statistics, self._broker.catalog.topics
        statistics.responded(api_key, response, perf_counter() - started)
        if api_key == _PRODUCE:
            statistics.produced(cast("ProduceResponse", response), topics)
        elif api_key == _FETCH:
            statistics.fetched(cast("FetchRequest", request), cast("FetchResponse", response), topics)

    def _finish(self, call: _Call, response: Message, ended: float) -> list[Buffer] | None:
        """Encode the response. Over quota, it carries the throttle time and the connection is muted (KIP-219)."""
        context = call.context
        try:
            buffers = encode_response(response, context.api_version, context.correlation_id)
            self._record(context.api_key, call.request, response, call.started)
            if self._broker.quotas.active:
                throttle_ms = self._broker.quotas.throttle_ms(
                    context,
                    api_key=context.api_key,
                    request_bytes=call.request_bytes,
                    response_bytes=sum(map(len, buffers)),
                    handler_ms=(ended - call.started) * 1000,
                )
                if throttle_ms > 0:
                    call.connection.mute(throttle_ms)
                    if "throttle_time_ms" in response.fields:
                        response = response.replace(throttle_time_ms=throttle_ms)
                        return encode_response(response, context.api_version, context.correlation_id)
            return buffers
        except Exception:
            log.exception("internal error while encoding the response to %s; please report it", call.name)
            call.connection.close(f"internal error while encoding the response to {call.name}")
            return None

    def _unsupported(self, connection: ServerConnection, header: RequestHeader) -> list[Buffer] | None:
        if header.api_key != ApiKey.API_VERSIONS:
            known = supported(header.api_key)
            versions = f"supported versions are {known.first} to {known.last}" if known else "unknown API"
            connection.close(f"unsupported request {api_name(header.api_key)} v{header.api_version}: {versions}")
            return None
        # Imported here: handler modules are loaded on first use.
        from headrace.broker.handlers.api_versions import api_rows
        from headrace.wire.api.metadata import ApiVersionsResponse

        response = ApiVersionsResponse(error_code=Code.UNSUPPORTED_VERSION, api_keys=api_rows())
        return encode_response(response, 0, header.correlation_id)

    def _failed(self, call: _Call, error: Exception) -> list[Buffer] | None:
        """Return the response of a failed request."""
        if isinstance(error, CloseConnection):
            self._broker.statistics.closed(call.context.api_key, perf_counter() - call.started)
            call.connection.close(str(error))
            return None
        if isinstance(error, BrokerError):
            code = error.code
        else:
            code = Code.UNKNOWN_SERVER_ERROR
            log.error(
                "internal error in %s of %s; please report it", call.name, call.context.session.host, exc_info=error
            )
        response = failed_response(call.context, call.request, code, str(error.args[0]) if error.args else "")
        if response is None:
            self._broker.statistics.closed(call.context.api_key, perf_counter() - call.started)
            call.connection.close(f"{call.name} failed, and its response has no error code")
            return None
        return self._finish(call, response, perf_counter())


def _without_records(request: Message) -> Message:
    # Imported here: handler modules are loaded on first use.
    from headrace.broker.handlers.produce import without_records
    from headrace.wire.api.produce import ProduceRequest

    assert isinstance(request, ProduceRequest)
    return without_records(request)


def failed_response(context: Context, request: Message, code: int, text: str) -> Message | None:
    """Return a failed response: from the `fail_…` function of its handler, with a top-level error code, or by item."""
    fail = failure_handler(context.api_key)
    if fail is not None:
        return fail(context, request, code)
    message = None if code == Code.UNKNOWN_SERVER_ERROR else text
    cls = response_class(context.api_key)
    field = cls.fields.get("error_code")
    if field is None or context.api_version not in field.versions:
        # A Metadata response without brokers would be worse than none.
        return None if context.api_key == ApiKey.METADATA else mirrored_error(context, request, code, message)
    values: dict[str, Any] = {"error_code": code}
    if "error_message" in cls.fields and message is not None:
        values["error_message"] = message
    response: Message = cls(**values)
    return response
