"""Frames: a size, a header, a message.

    received bytes → framing.FrameReader → frames → decode_request_header, decode_request_body | decode_response
    message → encode_request | encode_response → a list of buffers for `sendmsg`, in which the record batches of a
    produce request (or of a fetch response) are not copied

The header version follows from the API key and version: flexible versions have tagged fields in the header, too.
The exception is the ApiVersions response, whose header stays at version 0, because a client reads it before the
versions are negotiated (KIP-511).
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeVar, cast

from headrace.errors import MalformedError
from headrace.wire.api import ApiKey, request_class, response_class
from headrace.wire.primitives import Buffer, read_uvarint
from headrace.wire.schema import Message, RequestMessage, codec

FRAME_BYTES_MAX = 100 * 1024 * 1024  # the default of socket.request.max.bytes
CLIENT_ID_BYTES_MAX = 0x7FFF

R = TypeVar("R", bound=Message)

_API_VERSIONS = int(ApiKey.API_VERSIONS)
_request_head = struct.Struct(">hhih")
_int32 = struct.Struct(">i")


class RequestHeader(NamedTuple):
    """The header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def encode_request(message: Message, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """Encode a request frame, as a list of buffers."""
    raw_id = b"" if client_id is None else client_id.encode()
    if len(raw_id) > CLIENT_ID_BYTES_MAX:
        raise ValueError(f"client_id has {len(raw_id)} bytes; the maximum is {CLIENT_ID_BYTES_MAX}")
    head = _request_head.pack(message.api_key, version, correlation_id, -1 if client_id is None else len(raw_id))
    head += raw_id
    message_codec = codec(type(message), version)
    if message_codec.flexible:
        head += b"\0"
    return message_codec.encode_frame(message, head)


def encode_response(message: Message, version: int, correlation_id: int) -> list[Buffer]:
    """Encode a response frame, as a list of buffers."""
    head = _int32.pack(correlation_id)
    message_codec = codec(type(message), version)
    if message_codec.flexible and message.api_key != _API_VERSIONS:
        head += b"\0"
    return message_codec.encode_frame(message, head)


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """Return the header of a request frame (without its size) and the position after it."""
    if len(frame) < _request_head.size:
        raise MalformedError(f"expected a request header of 10 bytes or more, got {len(frame)} bytes", offset=0)
    key, version, correlation_id, id_length = _request_head.unpack_from(frame)
    pos = _request_head.size
    client_id = None
    if id_length >= 0:
        if id_length > len(frame) - pos:
            raise MalformedError(f"expected a client id of {id_length} bytes, {len(frame) - pos} left", offset=8)
        try:
            client_id = str(frame[pos : pos + id_length], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedError(f"expected a client id in UTF-8: {error.reason}", offset=pos) from None
        pos += id_length
    elif id_length != -1:
        raise MalformedError(f"expected the length of the client id, got {id_length}", offset=8)
    return RequestHeader(key, version, correlation_id, client_id), pos


def decode_request_body(header: RequestHeader, frame: Buffer, pos: int) -> Message:
    """Decode the message after a request header; raises UnsupportedVersionError for unknown keys and versions."""
    message_codec = codec(request_class(header.api_key), header.api_version)
    if message_codec.flexible:
        pos = _skip_tags(frame, pos)
    message: Message = message_codec.decode(frame, pos)
    return message


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Message]:
    """Return correlation id and message of a response frame (without its size)."""
    message_codec = codec(response_class(api_key), version)
    correlation_id = decode_correlation_id(frame)
    pos = _int32.size
    if message_codec.flexible and api_key != _API_VERSIONS:
        pos = _skip_tags(frame, pos)
    return correlation_id, message_codec.decode(frame, pos)


def decode_response_to(request: RequestMessage[R], version: int, frame: Buffer) -> tuple[int, R]:
    """Return correlation id and message of the response to a request, in the version of the request."""
    correlation_id, response = decode_response(request.api_key, version, frame)
    return correlation_id, cast(R, response)


def decode_correlation_id(frame: Buffer) -> int:
    """Return the correlation id of a response frame: its first four bytes."""
    if len(frame) < _int32.size:
        raise MalformedError(f"expected a correlation id of 4 bytes, got {len(frame)} bytes", offset=0)
    return int(_int32.unpack_from(frame)[0])


def _skip_tags(frame: Buffer, pos: int) -> int:
    """Return the position after the tagged fields of a header. None of them is defined yet."""
    end = len(frame)
    if pos < end and not frame[pos]:  # the common case
        return pos + 1
    count, pos = read_uvarint(frame, pos, end)
    for _ in range(count):
        _, pos = read_uvarint(frame, pos, end)
        start = pos
        size, pos = read_uvarint(frame, pos, end)
        if size > end - pos:
            raise MalformedError(f"expected a tagged field of {size} bytes, {end - pos} left", offset=start)
        pos += size
    return pos
