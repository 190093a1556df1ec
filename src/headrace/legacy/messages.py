"""KeyedMessage, the argument of `send`, and Messages, many of them in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, NamedTuple, Self, TypeVar

V = TypeVar("V")


class KeyedMessage(NamedTuple):
    """A message for a topic. Its partition is derived from `partition_key`, else from `key`, else arbitrary.

    The partition key is not sent.
    """

    topic: str
    message: object
    key: object = None
    partition_key: object = None


FIELDS = len(KeyedMessage._fields)


@dataclass(slots=True)
class Messages(Generic[V]):
    """Messages in columns; values and keys are as given (object) or serialized (bytes | None).

    The garbage collector would traverse ten thousand tuples in a queue again and again, which takes longer than sending
    them. Columns avoid that.
    """

    topics: list[str]
    values: list[V]
    keys: list[V]
    partition_keys: list[object]

    @classmethod
    def of_flat(cls, flat: list[object], stop: int | None = None) -> Self:
        """Build columns from the first `stop` entries of a flat list of fields, message after message."""
        columns = [flat[index:stop:FIELDS] for index in range(FIELDS)]
        return cls(*columns)  # type: ignore[arg-type]  # the types of KeyedMessage

    @classmethod
    def of(cls, messages: Iterable[KeyedMessage]) -> Self:
        return cls.of_flat(list(chain.from_iterable(messages)))

    def __len__(self) -> int:
        return len(self.topics)

    def rows(self, indexes: Sequence[int]) -> Messages[V]:
        """Return the messages with these indexes."""
        return Messages(
            [self.topics[index] for index in indexes],
            [self.values[index] for index in indexes],
            [self.keys[index] for index in indexes],
            [self.partition_keys[index] for index in indexes],
        )

    def extend(self, others: Messages[V]) -> None:
        self.topics += others.topics
        self.values += others.values
        self.keys += others.keys
        self.partition_keys += others.partition_keys


SerializedMessages = Messages[bytes | None]
