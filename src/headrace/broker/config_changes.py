"""Setting options: AlterConfigs, which replaces all that is set on a resource, and IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from headrace.broker.catalog.configs import BROKER, TOPIC, Configs
from headrace.broker.catalog.topics import check_name
from headrace.broker.configs import ResourceType, check_values
from headrace.broker.context import Session
from headrace.broker.security.access import require, require_on_cluster
from headrace.broker.security.authorizer import Operation, Resource
from headrace.broker.topic_options import TOPIC_OPTIONS
from headrace.config import Options
from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

_THROTTLES = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Kafka's tools take these back from brokers when a move is over. Nothing is throttled here: nothing is to be done."""
_SECTIONS = {ResourceType.TOPIC: TOPIC, ResourceType.BROKER: BROKER}


class Op(IntEnum):
    """What to do with a value, by Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """Of one option."""

    name: str
    op: int
    value: str | None


def check_resource(broker: Broker, session: Session, kind: int, name: str, operation: Operation) -> ResourceType:
    """The kind of a resource that exists, and that the client may do this to."""
    if kind == ResourceType.TOPIC:
        require(broker.authorizer, session, operation, Resource.TOPIC, name)
        check_name(name)
        if name not in broker.catalog.topics.by_name:
            raise BrokerError(f"there is no topic {name}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
        return ResourceType.TOPIC
    if kind == ResourceType.GROUP:
        require(broker.authorizer, session, operation, Resource.GROUP, name)
    else:
        require_on_cluster(broker.authorizer, session, operation)
    if kind != ResourceType.BROKER:
        raise BrokerError(
            f"only topics and brokers have options here, not resources of type {kind}", code=Code.INVALID_REQUEST
        )
    if name not in map(str, broker.catalog.brokers.by_id):  # the options of any broker of the cluster are set here
        broker.configurations.check_broker(name)
    return ResourceType.BROKER


def replace_all(
    broker: Broker, kind: ResourceType, name: str, values: Mapping[str, str | None], *, validate_only: bool
) -> None:
    """Let these, and nothing else, be set on a resource."""
    for option, value in values.items():
        if value is None:
            raise BrokerError(f"{option} has no value; leave it out to take it back", code=Code.INVALID_REQUEST)
    before = broker.catalog.configs.of(_SECTIONS[kind], name)
    _record(broker, kind, name, {**dict.fromkeys(before), **values}, validate_only=validate_only)


def change(broker: Broker, kind: ResourceType, name: str, changes: Iterable[Change], *, validate_only: bool) -> None:
    """Change some of what is set on a resource."""
    before = broker.catalog.configs.of(_SECTIONS[kind], name)
    values: dict[str, str | None] = {}
    for each in changes:
        if each.name in values:
            raise BrokerError(f"{each.name} is in the request twice", code=Code.INVALID_REQUEST)
        values[each.name] = _changed(broker, kind, each, before)
    _record(broker, kind, name, values, validate_only=validate_only)


def _changed(broker: Broker, kind: ResourceType, each: Change, before: Mapping[str, str]) -> str | None:
    if each.op == Op.DELETE:
        return None
    if each.value is None:
        raise BrokerError(f"{each.name} has no value", code=Code.INVALID_REQUEST)
    if each.op == Op.SET:
        return each.value
    if each.op not in (Op.APPEND, Op.SUBTRACT):
        raise BrokerError(f"{each.name}: there is no operation {each.op}", code=Code.INVALID_REQUEST)
    option = _options(kind).get(each.name)
    if option is None or option.kind not in ("list", "classes"):
        verb = Op(each.op).name
        raise BrokerError(f"{each.name} is no list: {verb} has no meaning for it", code=Code.INVALID_CONFIG)
    now = before[each.name] if each.name in before else broker.configurations.default(kind, option)
    items = [item.strip() for item in now.split(",") if item.strip()]
    given = [item.strip() for item in each.value.split(",") if item.strip()]
    if each.op == Op.APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)


def _record(
    broker: Broker, kind: ResourceType, name: str, values: Mapping[str, str | None], *, validate_only: bool
) -> None:
    section = _SECTIONS[kind]
    before = broker.catalog.configs.of(section, name)
    gone = {option for option, value in values.items() if value is None}
    after = {**{option: value for option, value in before.items() if option not in gone}, **values}
    current = broker.configurations.current()
    # What is taken back need not be known: it may have been set by a broker that knew more options.
    check_values(kind, {option: value for option, value in after.items() if option not in gone}, current)
    unknown = gone - before.keys() - _options(kind).keys() - _THROTTLES
    if unknown:
        check_values(kind, dict.fromkeys(unknown), current)
    changed = {option: value for option, value in values.items() if before.get(option) != value}
    if changed and not validate_only:
        broker.catalog.record(Configs.change(section, name, changed))


def _options(kind: ResourceType) -> Options:
    if kind == ResourceType.TOPIC:
        return TOPIC_OPTIONS
    from headrace.broker.broker_options import BROKER_OPTIONS

    return BROKER_OPTIONS


class Row(Protocol):
    """A resource in a request, and what is to be set on it."""

    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


R = TypeVar("R", bound=Row)


def alter_each(rows: Sequence[R], alter: Callable[[R], None]) -> Iterator[tuple[R, int, str | None]]:
    """Alter one resource after the other: each with its error code, and the text to it.

    A resource that is in the request twice is refused: which of the two would it be?
    """
    named = [(row.resource_type, row.resource_name) for row in rows]
    for row in rows:
        try:
            if named.count((row.resource_type, row.resource_name)) > 1:
                raise BrokerError(f"{row.resource_name!r} is in the request twice", code=Code.INVALID_REQUEST)
            alter(row)
        except BrokerError as error:
            yield row, error.code, str(error.args[0])
        else:
            yield row, Code.NONE, None
