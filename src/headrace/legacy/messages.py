"""What `send` takes, and how it is kept until it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, NamedTuple, Self, TypeVar

V = TypeVar("V")


class KeyedMessage(NamedTuple):
    """A message for a topic. The partition follows from `partition_key`, or from `key`, or is any one.

    A partition key is not sent: it only says which messages belong together.
    """

    topic: str
    message: object
    key: object = None
    partition_key: object = None


FIELDS = len(KeyedMessage._fields)


@dataclass(slots=True)
class Messages(Generic[V]):
    """Messages in columns, values and keys of them as they came (object) or serialised (bytes | None).

    Ten thousand tuples in a queue would be looked at by the garbage collector over and over, which takes longer than
    to send them. Their fields, laid out in a row, are nothing to it.
    """

    topics: list[str]
    values: list[V]
    keys: list[V]
    partition_keys: list[object]

    @classmethod
    def of_flat(cls, flat: list[object], stop: int | None = None) -> Self:
        """From field after field, message after message, the first `stop` of them."""
        columns = [flat[place:stop:FIELDS] for place in range(FIELDS)]
        return cls(*columns)  # type: ignore[arg-type]  # they are what KeyedMessage says

    @classmethod
    def of(cls, messages: Iterable[KeyedMessage]) -> Self:
        return cls.of_flat(list(chain.from_iterable(messages)))

    def __len__(self) -> int:
        return len(self.topics)

    def rows(self, places: Sequence[int]) -> Messages[V]:
        """Some of them."""
        return Messages(
            [self.topics[place] for place in places],
            [self.values[place] for place in places],
            [self.keys[place] for place in places],
            [self.partition_keys[place] for place in places],
        )

    def extend(self, others: Messages[V]) -> None:
        self.topics += others.topics
        self.values += others.values
        self.keys += others.keys
        self.partition_keys += others.partition_keys


SerializedMessages = Messages[bytes | None]
