"""A frame → header → message → handler → answer → a gather list.

Whatever goes wrong ends in an answer or in a closed connection, never in one that waits for ever:

    not a request, or one that nobody speaks      closed, with a line in the log
    ApiVersions of a version to come              what we do speak, in version 0 (KIP-511)
    an error the handler did not foresee          a traceback in the log, and UNKNOWN_SERVER_ERROR if the answer has a
                                                  place for it
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Coroutine
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.context import Context, HandlerResult
from headrace.broker.faults import CloseConnection
from headrace.broker.handlers import SUPPORTED, failure_handler, supported
from headrace.errors import BrokerError, Code, MalformedError
from headrace.wire.api import api_name, response_class
from headrace.wire.frames import (
    API_VERSIONS,
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
    from headrace.broker.server.connection import Connection

log = logging.getLogger("headrace.broker")

_int32 = struct.Struct(">i")
_PRODUCE, _FETCH = 0, 1
_CATALOG_FETCH = 30_000
_ABANDONABLE = frozenset({_FETCH, _CATALOG_FETCH})
"""What nobody needs to be finished when the connection is gone: it changes nothing."""


class Later(NamedTuple):
    """An answer to wait for."""

    answer: Coroutine[Any, Any, list[Buffer] | None]
    abandonable: bool


class _Call(NamedTuple):
    """A request on its way through."""

    connection: Connection
    context: Context
    message: Message
    request_bytes: int
    began: float

    @property
    def name(self) -> str:
        return f"{api_name(self.context.api_key)} v{self.context.api_version}"


class Dispatcher:
    """Calls the handlers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __call__(self, connection: Connection, frame: Buffer) -> list[Buffer] | Later | None:
        """The answer to a request; None: there is none, and the connection may be closing."""
        sasl = connection.sasl
        if sasl is not None and sasl.expects_token:
            return Later(self._bare_token(connection, sasl, frame), abandonable=True)
        try:
            header, pos = decode_request_header(frame)
            spoken = SUPPORTED.get(header[0]) or supported(header[0])
            if spoken is None or not spoken[0] <= header[1] <= spoken[1]:
                return self._unsupported(connection, header)
            if sasl is not None and not sasl.admits(header[0]):
                connection.close(f"{api_name(header[0])} of a peer that is not, or no longer, authenticated")
                return None
            message = decode_request_body(header, frame, pos)
        except MalformedError as error:
            connection.close(str(error))
            return None
        context = Context(connection.session, header[0], header[1], header[3], header[2])
        began = perf_counter()
        broker = self._broker
        try:
            handle = broker.handler(header[0])
            if broker.faults.active and (fault := broker.faults.match(context, message)) is not None:
                answer: HandlerResult = fault.run(context, message, partial(handle, broker, context, message))
            else:
                answer = handle(broker, context, message)
            if isinstance(answer, Message) and not broker.quotas.active:  # nearly always
                return encode_response(answer, header[1], header[2])
        except Exception as error:
            return self._failed(_Call(connection, context, message, len(frame), began), error)
        if answer is None:
            return None
        call = _Call(connection, context, message, len(frame), began)
        if isinstance(answer, Message):
            return self._finish(call, answer, perf_counter())
        if header[0] == _PRODUCE:
            call = call._replace(message=_without_records(message))
        return Later(self._await(call, answer, perf_counter()), header[0] in _ABANDONABLE)

    async def _bare_token(self, connection: Connection, sasl: SaslAuthentication, frame: Buffer) -> list[Buffer] | None:
        """A token without a header, as SaslHandshake 0 announces it; the answer has none, either."""
        try:
            token = await sasl.bare_token(bytes(frame))
        except BrokerError as error:
            connection.close(str(error))
            return None
        return [_int32.pack(len(token)), token]

    async def _await(self, call: _Call, answer: Awaitable[Message | None], ended: float) -> list[Buffer] | None:
        try:
            response = await answer
        except Exception as error:
            return self._failed(call, error)
        # Waiting is no work: what counts is the time before it.
        return None if response is None else self._finish(call, response, ended)

    def _finish(self, call: _Call, response: Message, ended: float) -> list[Buffer] | None:
        """Encode, and throttle who is over its quota: it is told so at once, and not served for a while (KIP-219)."""
        context = call.context
        try:
            buffers = encode_response(response, context.api_version, context.correlation_id)
            if self._broker.quotas.active:
                throttle_ms = self._broker.quotas.throttle_ms(
                    context,
                    api_key=context.api_key,
                    request_bytes=call.request_bytes,
                    response_bytes=sum(map(len, buffers)),
                    handler_ms=(ended - call.began) * 1000,
                )
                if throttle_ms > 0:
                    call.connection.mute(throttle_ms)
                    if "throttle_time_ms" in response.fields:
                        response = response.replace(throttle_time_ms=throttle_ms)
                        return encode_response(response, context.api_version, context.correlation_id)
            return buffers
        except Exception:
            log.exception("cannot encode the answer to %s", call.name)
            call.connection.close(f"there is no answer to {call.name} to give")
            return None

    def _unsupported(self, connection: Connection, header: RequestHeader) -> list[Buffer] | None:
        if header.api_key != API_VERSIONS:
            known = supported(header.api_key)
            spoken = f"versions {known.first} to {known.last} are spoken" if known else "it is not offered"
            connection.close(f"{api_name(header.api_key)} v{header.api_version} was asked for: {spoken}")
            return None
        from headrace.broker.handlers.api_versions import api_rows
        from headrace.wire.api.api_versions import ApiVersionsResponse

        answer = ApiVersionsResponse(error_code=Code.UNSUPPORTED_VERSION, api_keys=api_rows())
        return encode_response(answer, 0, header.correlation_id)

    def _failed(self, call: _Call, error: Exception) -> list[Buffer] | None:
        """An answer that says what went wrong with all of it."""
        if isinstance(error, CloseConnection):
            call.connection.close(str(error))
            return None
        self._broker.server.failed_requests += 1
        if isinstance(error, BrokerError):
            code = error.code
        else:
            code = Code.UNKNOWN_SERVER_ERROR
            log.error("%s of %s failed", call.name, call.context.session.host, exc_info=error)
        response = failure(call.context, call.message, code, str(error.args[0]) if error.args else "")
        if response is None:
            call.connection.close(f"{call.name} failed, and its answer has no place to say so")
            return None
        return self._finish(call, response, perf_counter())


def _without_records(message: Message) -> Message:
    from headrace.broker.handlers.produce import without_records
    from headrace.wire.api.produce import ProduceRequest

    assert isinstance(message, ProduceRequest)
    return without_records(message)


def failure(context: Context, message: Message, code: int, text: str) -> Message | None:
    """The answer by which all of a request failed: what the handler's own `failure` makes, or one with just a code."""
    fail = failure_handler(context.api_key)
    if fail is not None:
        return fail(context, message, code)
    cls = response_class(context.api_key)
    field = cls.fields.get("error_code")
    if field is None or context.api_version not in field.versions:
        return None
    values: dict[str, Any] = {"error_code": code}
    if "error_message" in cls.fields and code != Code.UNKNOWN_SERVER_ERROR:
        values["error_message"] = text
    response: Message = cls(**values)
    return response
