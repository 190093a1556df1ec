"""Messages, declared once for all their versions.

A declaration reads like the protocol guide; versions are in its notation (``"3+"``, ``"0-12"``)::

    class EndTxnRequest(Message, api_key=26, versions="0-5", flexible="3+"):
        transactional_id: str = string()
        producer_id: int = int64()
        producer_epoch: int = int16()
        committed: bool = boolean()

A message is an immutable tuple with named fields: cheap to build and to take apart, safe to share.
Arrays are tuples, uuids 16 bytes, records whatever buffers they came as. The last element, `tags`,
holds tagged fields this version of the protocol does not know; they travel along.

The data flow: declaration → `plan(cls, version)`, what is on the wire in that version, in order
→ the kernel's `MessageCodec(plan)`, made on first use and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, dataclass_transform

from headrace.errors import UnsupportedVersionError
from headrace.wire.kernel import kernel
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    from headrace.wire._reference import MessageCodec

# Kinds of fields; the kernel has the same numbers.
BOOLEAN, INT8, INT16, UINT16, INT32, UINT32, INT64, FLOAT64, UUID, STRING, BYTES, RECORDS, STRUCT, ARRAY = range(14)

ZERO_UUID = bytes(16)
VERSION_MAX = 0x7FFF

Records = Buffer | Sequence[Buffer] | None
"""What a records field takes: a buffer, or several that follow one another. None of them is copied."""


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
    """One declared field."""

    kind: int
    versions: Versions
    nullable: Versions
    tag: int  # -1: not a tagged field
    default: object
    ignorable: bool  # dropped without a word where the version lacks it
    secret: bool  # never shown in a repr
    element: int | type[Struct] | None  # what an array holds, or a struct's class


def _declare(kind: int, default: object) -> Callable[..., Any]:
    def declare(
        versions: str = "0+",
        *,
        nullable: str | None = None,
        tag: int = -1,
        default: object = default,
        ignorable: bool = False,
        secret: bool = False,
    ) -> Any:
        return Field(
            kind, Versions.parse(versions), Versions.parse(nullable), tag, default, ignorable, secret, element=None
        )

    return declare


boolean = _declare(BOOLEAN, False)
int8 = _declare(INT8, 0)
int16 = _declare(INT16, 0)
uint16 = _declare(UINT16, 0)
int32 = _declare(INT32, 0)
uint32 = _declare(UINT32, 0)
int64 = _declare(INT64, 0)
float64 = _declare(FLOAT64, 0.0)
uuid = _declare(UUID, ZERO_UUID)
string = _declare(STRING, "")
bytes_ = _declare(BYTES, b"")
records_ = _declare(RECORDS, None)


def array(of: Callable[..., Any] | type[Struct], versions: str = "0+", **options: Any) -> Any:
    """An array of structs or of a simple kind (`array(int32)`)."""
    element = of if isinstance(of, type) else of().kind
    return _declare(ARRAY, ())(versions, **options)._replace(element=element)


def struct(of: type[Struct], versions: str = "0+", **options: Any) -> Any:
    """A struct by itself; absent means one with all defaults, unless it may be null."""
    options.setdefault("default", of())
    return _declare(STRUCT, None)(versions, **options)._replace(element=of)


try:
    # What namedtuple itself uses: three times as fast as a property over itemgetter.
    from _collections import _tuplegetter  # type: ignore[import-not-found]
except ImportError:  # pragma: no cover - other Pythons
    from operator import itemgetter

    def _tuplegetter(index: int, doc: str) -> property:
        return property(itemgetter(index), doc=doc)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class _StructMeta(type):
    """Collects the declared fields of a class and gives it a constructor and getters."""

    fields: dict[str, Field]

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int | None = None,
        versions: str | None = None,
        flexible: str | None = None,
    ) -> _StructMeta:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        namespace["__slots__"] = ()
        namespace["fields"] = fields
        if versions is not None:
            namespace["versions"] = Versions.parse(versions)
            namespace["flexible"] = Versions.parse(flexible)
        if api_key is not None:
            namespace["api_key"] = api_key
        for index, key in enumerate([*fields, "tags"]):
            namespace[key] = _tuplegetter(index, f"Field {index}.")
        namespace["__new__"] = _constructor(fields)
        return super().__new__(mcs, name, bases, namespace)


def _constructor(fields: dict[str, Field]) -> Callable[..., Any]:
    """`__new__(cls, *, field=default, …, tags=None)`, written out, as namedtuple does: the fastest there is."""
    values = []
    for name, field in fields.items():
        value = name
        if field.kind == ARRAY:
            value = f"{name} if {name} is None or type({name}) is tuple else tuple({name})"
        values.append(value)
    parameters = "".join(f", {name}=defaults[{name!r}]" for name in fields)
    source = f"def __new__(cls, *{parameters}, tags=None):\n return new(cls, ({', '.join([*values, 'tags'])},))"
    scope: dict[str, Any] = {"new": tuple.__new__, "defaults": {name: f.default for name, f in fields.items()}}
    exec(source, scope)
    return scope["__new__"]  # type: ignore[no-any-return]


class Struct(tuple[Any, ...], metaclass=_StructMeta):
    """Named fields in wire order, and `tags`: unknown tagged fields by number, or None."""

    fields: ClassVar[dict[str, Field]]
    tags: dict[int, bytes] | None = None

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        values = dict(zip([*self.fields, "tags"], self, strict=True))
        return type(self)(**{**values, **changes})

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        return (), dict(zip([*self.fields, "tags"], self, strict=True))

    def __repr__(self) -> str:
        """Only what differs from the defaults, and no secrets."""
        shown = [
            f"{name}={'***' if field.secret else repr(value)}"
            for (name, field), value in zip(self.fields.items(), self, strict=False)
            if value != field.default
        ]
        if self[-1]:
            shown.append(f"tags={self[-1]!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class Message(Struct):
    """A struct that travels by itself: it has versions, and an API key if it is a request or response."""

    api_key: ClassVar[int]
    versions: ClassVar[Versions]
    flexible: ClassVar[Versions]

    def encode(self, version: int) -> bytes:
        """The message alone, in one piece."""
        return b"".join(codec(type(self), version).encode(self))

    @classmethod
    def decode(cls, version: int, data: Buffer) -> Self:
        """The message that fills `data`; records in it are views of `data`."""
        return codec(cls, version).decode_whole(data)  # type: ignore[no-any-return]


class FieldPlan(NamedTuple):
    """A field as it is on the wire in one version."""

    name: str
    place: int  # in the tuple
    kind: int
    nullable: bool
    tag: int
    default: object
    element_kind: int
    element: StructPlan | None


class Absent(NamedTuple):
    """A field this version lacks and that must not be dropped silently."""

    name: str
    place: int
    default: object
    versions: str


class StructPlan(NamedTuple):
    """A struct as it is on the wire in one version: all that a kernel needs to know."""

    cls: type[Struct]
    version: int
    flexible: bool
    fields: tuple[FieldPlan, ...]  # in wire order, untagged
    tagged: tuple[FieldPlan, ...]  # by tag
    absent: tuple[Absent, ...]
    defaults: tuple[object, ...]  # a whole tuple of them, `tags` included


def plan(cls: type[Struct], version: int, flexible: bool) -> StructPlan:
    """What of `cls` is on the wire in `version`."""
    untagged: list[FieldPlan] = []
    tagged: list[FieldPlan] = []
    absent: list[Absent] = []
    for place, (name, field) in enumerate(cls.fields.items()):
        if version not in field.versions:
            if not field.ignorable:
                absent.append(Absent(name, place, field.default, str(field.versions)))
            continue
        element, element_kind = None, -1
        if isinstance(field.element, type):
            element, element_kind = plan(field.element, version, flexible), STRUCT
        elif field.element is not None:
            element_kind = field.element
        nullable = version in field.nullable
        entry = FieldPlan(name, place, field.kind, nullable, field.tag, field.default, element_kind, element)
        (untagged if field.tag < 0 else tagged).append(entry)
    defaults = (*(field.default for field in cls.fields.values()), None)
    tagged.sort(key=lambda entry: entry.tag)
    return StructPlan(cls, version, flexible, tuple(untagged), tuple(tagged), tuple(absent), defaults)


@cache
def codec(cls: type[Message], version: int) -> MessageCodec:
    """The compiled encoder and decoder of a message in a version."""
    if version not in cls.versions:
        raise UnsupportedVersionError(f"{cls.__name__} has versions {cls.versions}, not {version}")
    return kernel.MessageCodec(plan(cls, version, version in cls.flexible))
