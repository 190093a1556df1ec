"""Messages, declared once for all their versions.

A declaration reads like the protocol guide; versions are in its notation (``"3+"``, ``"0-12"``)::

    class EndTxnRequest(RequestMessage["EndTxnResponse"], api_key=26, versions="0-5", flexible="3+"):
        transactional_id: str = string()
        producer_id: int = int64()
        producer_epoch: int = int16()
        committed: bool = boolean()

Fields of base classes come first, in the order of the bases.

A message is an immutable tuple with named fields: cheap to build and to unpack, safe to share.
Arrays are tuples, uuids are 16 bytes, records stay in the buffers they came in. The last element,
`tags`, holds tagged fields that the declaration does not have; they are encoded again unchanged.

The data flow: declaration → `plan(cls, version)`, the fields of that version in wire order
→ the kernel's `MessageCodec(plan)`, built on first use and cached.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar, dataclass_transform

from headrace.errors import UnsupportedVersionError
from headrace.wire.fields import ARRAY, STRUCT, Field, Versions
from headrace.wire.kernel import kernel
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    from headrace.wire._reference import MessageCodec

try:
    # As namedtuple does: three times as fast as a property with an itemgetter.
    from _collections import _tuplegetter  # type: ignore[import-not-found]
except ImportError:  # pragma: no cover - other Pythons
    from operator import itemgetter

    def _tuplegetter(index: int, doc: str) -> property:
        return property(itemgetter(index), doc=doc)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class _StructMeta(type):
    """The metaclass that collects the declared fields of a class and adds a constructor and getters."""

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
        fields: dict[str, Field] = {}
        for base in bases:
            fields |= getattr(base, "fields", {})
        fields |= {key: value for key, value in namespace.items() if isinstance(value, Field)}
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
    """Generate `__new__(cls, *, field=default, …, tags=None)` from source, as namedtuple does: the fastest way."""
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
    """A tuple of named fields, and `tags`: unknown tagged fields by number, or None."""

    fields: ClassVar[dict[str, Field]]
    tags: dict[int, bytes] | None = None

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        values = dict(zip([*self.fields, "tags"], self, strict=True))
        return type(self)(**{**values, **changes})

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        return (), dict(zip([*self.fields, "tags"], self, strict=True))

    def __repr__(self) -> str:
        """Show the fields that differ from their defaults; secrets are masked."""
        shown = [
            f"{name}={'***' if field.secret else repr(value)}"
            for (name, field), value in zip(self.fields.items(), self, strict=False)
            if value != field.default
        ]
        if self[-1]:
            shown.append(f"tags={self[-1]!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class Message(Struct):
    """A struct with versions: a request or response (which has an API key), or a record of an internal topic."""

    api_key: ClassVar[int]
    versions: ClassVar[Versions]
    flexible: ClassVar[Versions]

    def encode(self, version: int) -> bytes:
        """Return the message without frame or header, as one bytes object."""
        return b"".join(codec(type(self), version).encode(self))

    @classmethod
    def decode(cls, version: int, data: Buffer) -> Self:
        """Decode the message that fills `data`; records in it are views of `data`."""
        message: Self = codec(cls, version).decode_whole(data)
        return message


ResponseT = TypeVar("ResponseT", bound=Message, covariant=True)


class RequestMessage(Message, Generic[ResponseT]):
    """A request. The type parameter is the class of its response."""


class FieldPlan(NamedTuple):
    """A field as it is on the wire in one version."""

    name: str
    position: int  # in the tuple
    kind: int
    nullable: bool
    tag: int
    default: object
    element_kind: int
    element: StructPlan | None


class AbsentField(NamedTuple):
    """A field that is not in this version and not ignorable: a value other than its default is an error."""

    name: str
    position: int
    default: object
    versions: str


class StructPlan(NamedTuple):
    """A struct as it is on the wire in one version: the input of a kernel's codec."""

    cls: type[Struct]
    version: int
    flexible: bool
    fields: tuple[FieldPlan, ...]  # in wire order, untagged
    tagged: tuple[FieldPlan, ...]  # by tag
    absent: tuple[AbsentField, ...]
    defaults: tuple[object, ...]  # of all fields, and of `tags`


def plan(cls: type[Struct], version: int, flexible: bool) -> StructPlan:
    """Return the fields of `cls` that are on the wire in `version`."""
    untagged: list[FieldPlan] = []
    tagged: list[FieldPlan] = []
    absent: list[AbsentField] = []
    for position, (name, field) in enumerate(cls.fields.items()):
        if version not in field.versions:
            if not field.ignorable:
                absent.append(AbsentField(name, position, field.default, str(field.versions)))
            continue
        element, element_kind = None, -1
        if isinstance(field.element, type):
            element, element_kind = plan(field.element, version, flexible), STRUCT
        elif field.element is not None:
            element_kind = field.element
        nullable = version in field.nullable
        entry = FieldPlan(name, position, field.kind, nullable, field.tag, field.default, element_kind, element)
        (untagged if field.tag < 0 else tagged).append(entry)
    defaults = (*(field.default for field in cls.fields.values()), None)
    tagged.sort(key=lambda entry: entry.tag)
    return StructPlan(cls, version, flexible, tuple(untagged), tuple(tagged), tuple(absent), defaults)


@cache
def codec(cls: type[Message], version: int) -> MessageCodec:
    """Return the encoder and decoder of a message in a version."""
    if version not in cls.versions:
        raise UnsupportedVersionError(f"{cls.__name__} has versions {cls.versions}, not {version}")
    return kernel.MessageCodec(plan(cls, version, version in cls.flexible))
