"""The fields of messages: kinds, versions, and the functions that declare a field of each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    from headrace.wire.schema import Struct

# Kinds of fields; the kernel has the same numbers.
BOOLEAN, INT8, INT16, UINT16, INT32, UINT32, INT64, FLOAT64, UUID, STRING, BYTES, RECORDS, STRUCT, ARRAY = range(14)

ZERO_UUID = bytes(16)
VERSION_MAX = 0x7FFF

Records = Buffer | Sequence[Buffer] | None
"""The value of a records field: a buffer, or consecutive buffers. They are not copied."""


class Versions(NamedTuple):
    """A closed range of versions."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str | None) -> Versions:
        if text is None:
            return NO_VERSIONS
        first, dash, last = text.rstrip("+").partition("-")
        return cls(int(first), VERSION_MAX if text.endswith("+") else int(last if dash else first))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __str__(self) -> str:
        return f"{self.first}+" if self.last == VERSION_MAX else f"{self.first}-{self.last}"


NO_VERSIONS = Versions(1, 0)


class Field(NamedTuple):
    """A declared field."""

    kind: int
    versions: Versions
    nullable: Versions
    tag: int  # -1: not a tagged field
    default: object
    ignorable: bool  # silently dropped in versions without the field
    secret: bool  # never shown in a repr
    element: int | type[Struct] | None  # the kind or class of an array's items, or a struct's class


def _field_declarer(kind: int, default: object) -> Callable[..., Any]:
    """Return the function that declares a field of a kind, with the default value of that kind."""

    def declare(
        versions: str = "0+",
        *,
        nullable: str | None = None,
        tag: int = -1,
        default: object = default,
        ignorable: bool = False,
        secret: bool = False,
        element: int | type[Struct] | None = None,
    ) -> Any:
        return Field(kind, Versions.parse(versions), Versions.parse(nullable), tag, default, ignorable, secret, element)

    return declare


boolean = _field_declarer(BOOLEAN, False)
int8 = _field_declarer(INT8, 0)
int16 = _field_declarer(INT16, 0)
uint16 = _field_declarer(UINT16, 0)
int32 = _field_declarer(INT32, 0)
uint32 = _field_declarer(UINT32, 0)
int64 = _field_declarer(INT64, 0)
float64 = _field_declarer(FLOAT64, 0.0)
uuid = _field_declarer(UUID, ZERO_UUID)
string = _field_declarer(STRING, "")
bytes_ = _field_declarer(BYTES, b"")
records_ = _field_declarer(RECORDS, None)
_array = _field_declarer(ARRAY, ())
_struct = _field_declarer(STRUCT, None)


def array(of: Callable[..., Any] | type[Struct], versions: str = "0+", **options: Any) -> Any:
    """Declare an array of structs or of a simple kind (`array(int32)`)."""
    return _array(versions, element=of if isinstance(of, type) else of().kind, **options)


def struct(of: type[Struct], versions: str = "0+", **options: Any) -> Any:
    """Declare a field that is a struct; its default is the struct with all defaults."""
    return _struct(versions, element=of, **{"default": of(), **options})
