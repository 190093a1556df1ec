"""Encoders, as 0.8 called serializers: today's, which answer to their old names, too; and the step that uses them."""

from __future__ import annotations

import logging
import re
from typing import cast

from headrace.errors import SerializationError
from headrace.legacy.messages import Messages, SerializedMessages
from headrace.legacy.metrics import Counter, ProducerStats
from headrace.producer.plugins import PluginKind
from headrace.producer.serializers import KIND as SERIALIZER_KIND
from headrace.producer.serializers import (
    BytesSerializer,
    IntSerializer,
    LongSerializer,
    NoneSerializer,
    Serializer,
    StrSerializer,
)

log = logging.getLogger("headrace")

_SCALA = "kafka.serializer."
KIND = PluginKind(
    "encoder",
    Serializer,
    {
        **SERIALIZER_KIND.known,
        _SCALA + "DefaultEncoder": BytesSerializer,
        _SCALA + "StringEncoder": StrSerializer,
        _SCALA + "IntegerEncoder": IntSerializer,
        _SCALA + "LongEncoder": LongSerializer,
        _SCALA + "NullEncoder": NoneSerializer,
    },
    SERIALIZER_KIND.adapt,
)

Column = list[bytes | None]
_BYTES = {bytes, type(None)}
_STR = {str}
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)  # as brokers allow it


class MessageEncoder:
    """The first step of the event handler: values and keys become bytes."""

    def __init__(self, encoder: Serializer, key_encoder: Serializer, stats: ProducerStats, *, is_async: bool) -> None:
        self._encoder = encoder
        self._key_encoder = key_encoder
        self._stats = stats
        self._is_async = is_async
        self._changes_nothing = type(encoder) is type(key_encoder) is BytesSerializer
        self._topics: set[str] = set()  # those that were found to be some

    def serialize(self, messages: Messages[object]) -> SerializedMessages:
        """What cannot be serialised is counted; sync it is raised, async it is told in the log, and left out."""
        topics, values, keys = messages.topics, messages.values, messages.keys
        # The partition follows from the key as it was given.
        partition_keys = _first_of(messages.partition_keys, keys)
        if self._changes_nothing and _are_bytes(values) and _are_bytes(keys) and self._are_known(topics):
            return Messages(topics, cast(Column, values), cast(Column, keys), partition_keys)
        done: SerializedMessages = Messages([], [], [], [])
        for topic, value, key, partition_key in zip(topics, values, keys, partition_keys, strict=True):
            try:
                self._check_topic(topic)
                value_bytes = self._encoder.serialize(topic, value, [])
                key_bytes = self._key_encoder.serialize(topic, key, [])
            except Exception as error:  # an encoder of the user's may raise anything
                self._stats.count(Counter.SERIALIZATION_ERRORS)
                if not self._is_async:
                    raise
                log.error("a message to topic %s is dropped: %s", topic, error)
            else:
                done.extend(Messages([topic], [value_bytes], [key_bytes], [partition_key]))
        return done

    def _are_known(self, topics: list[str]) -> bool:
        return _STR.issuperset(map(type, topics)) and self._topics.issuperset(topics)

    def _check_topic(self, topic: object) -> None:
        """A name that no broker takes would spoil requests that are about other topics, too."""
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
            raise SerializationError(
                f"{topic!r} is no name of a topic: 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-' are",
                topic=str(topic),
                serializer="",
                value_type=type(topic).__qualname__,
            )
        self._topics.add(topic)


def _first_of(partition_keys: list[object], keys: list[object]) -> list[object]:
    if partition_keys.count(None) == len(keys):
        return keys
    return [key if chosen is None else chosen for chosen, key in zip(partition_keys, keys, strict=True)]


def _are_bytes(column: list[object]) -> bool:
    return _BYTES.issuperset(map(type, column))
