"""Responses with the same error for every item of any request.

    request ─ mirrored level by level ─► response: the same topics and partitions, each with the error code

An array of the response whose elements have an error code corresponds to the first array of the request on that level,
element by element, in every API of Kafka but one. Fields that exist on both sides are copied. Arrays without error
codes stay empty.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from headrace.broker.context import Context
from headrace.errors import Code, error_name
from headrace.wire.api import ApiKey, response_class
from headrace.wire.fields import ARRAY, INT32, INT64, STRING, Field
from headrace.wire.schema import Message, Struct

if TYPE_CHECKING:
    from headrace.wire.api.access import AlterUserScramCredentialsRequest
    from headrace.wire.api.metadata import MetadataResponse

T = TypeVar("T", bound=Struct)

_ERROR_FIELDS = ("error_code", "partition_error_code")
# Where request and response have different names for the same field: response → request.
_REQUEST_FIELD_NAMES = {"partition_index": "partition", "user": "name", "name": "topic"}
_OFFSET_SUFFIXES = ("offset", "watermark")
_SESSION_ERRORS = (Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH, Code.FETCH_SESSION_TOPIC_ID_ERROR)


async def error_response(
    context: Context,
    message: Message,
    code: int,
    handle: Callable[[], Awaitable[Message | None]],
    text: str | None = None,
) -> Message:
    """Return the response to `message` in which everything failed with `code`; `text` is the error message.

    Metadata must contain the brokers, so there the handler is called (`handle`) and the topics of its response fail.
    """
    if context.api_key == ApiKey.METADATA:
        response = cast("MetadataResponse", await handle())
        return response.replace(topics=[topic.replace(error_code=code, partitions=()) for topic in response.topics])
    return mirrored_error(context, message, code, f"injected: {error_name(code)}" if text is None else text)


def mirrored_error(context: Context, message: Message, code: int, text: str | None) -> Message:
    """Return the response to `message` in which every item failed with `code`."""
    cls = response_class(context.api_key)
    if context.api_key == ApiKey.FETCH and code not in _SESSION_ERRORS:
        # The top-level code is for session errors: clients would ignore the partitions.
        return _mirrored(cls, message, context.api_version, code, text, top=False)
    if context.api_key == ApiKey.DESCRIBE_LOG_DIRS:
        message = message.replace(topics=(Struct(),))  # one row per data folder, not per topic
    elif context.api_key == ApiKey.ALTER_USER_SCRAM_CREDENTIALS:
        request = cast("AlterUserScramCredentialsRequest", message)
        message = request.replace(deletions=(*request.deletions, *request.upsertions))
    return _mirrored(cls, message, context.api_version, code, text)


def _mirrored(cls: type[T], request: object, version: int, code: int, text: str | None, *, top: bool = True) -> T:
    """Return the struct of the response for a struct, or a bare value, of the request."""
    values: dict[str, Any] = {}
    for name, field in cls.fields.items():
        if version not in field.versions:
            continue
        if name in _ERROR_FIELDS:
            if top:
                values[name] = code
        elif name == "error_message":
            values[name] = text
        elif field.kind == ARRAY:
            if _carries_error(field, version):
                assert isinstance(field.element, type)
                values[name] = [
                    _mirrored(field.element, element, version, code, text) for element in _first_array(request, version)
                ]
        elif field.kind == INT64 and name.endswith(_OFFSET_SUFFIXES):
            values[name] = -1
        if name not in values and isinstance(request, Struct):
            values.update(_copied(name, field, request))
    if not isinstance(request, Struct):
        values.update(_named(cls, request))
    return cls(**values)


def _copied(name: str, field: Field, request: Struct) -> dict[str, Any]:
    """Return the corresponding field of the request, if there is one."""
    for candidate in (name, _REQUEST_FIELD_NAMES.get(name, name)):
        known = request.fields.get(candidate)
        if known is not None and (known.kind, known.element) == (field.kind, field.element):
            return {name: getattr(request, candidate)}
    return {}


def _named(cls: type[Struct], value: object) -> dict[str, Any]:
    """Return the first field that fits a bare value of the request, such as a partition or a group."""
    kinds = (STRING,) if isinstance(value, str) else (INT32, INT64)
    fields = cls.fields.items()
    return next(({name: value} for name, field in fields if field.kind in kinds and name != "error_message"), {})


def _first_array(request: object, version: int) -> tuple[Any, ...]:
    if isinstance(request, Struct):
        for name, field in request.fields.items():
            if field.kind == ARRAY and version in field.versions:
                return getattr(request, name) or ()
    return ()


@cache
def _carries_error(field: Field, version: int) -> bool:
    """Return whether the elements of an array have an error code, directly or nested."""
    element = field.element
    if not isinstance(element, type):
        return False
    return any(
        version in inner.versions
        and (name in _ERROR_FIELDS or (inner.kind == ARRAY and _carries_error(inner, version)))
        for name, inner in element.fields.items()
    )


def topics_in(request: Struct, name_of: Callable[[bytes], str | None]) -> Iterator[str]:
    """Yield the topics of a request, by name or id."""
    for name, field in request.fields.items():
        if field.kind != ARRAY:
            continue
        about_topics = "topic" in name
        for element in getattr(request, name) or ():
            if isinstance(element, Struct):
                if about_topics:
                    yield from _topic_names(element, name_of)
                yield from topics_in(element, name_of)
            elif about_topics and isinstance(element, str):
                yield element


def _topic_names(element: Struct, name_of: Callable[[bytes], str | None]) -> Iterator[str]:
    for name in ("name", "topic"):
        if topic := getattr(element, name, None):
            yield topic
    topic_id = getattr(element, "topic_id", None)
    if topic_id and (topic := name_of(topic_id)):
        yield topic
