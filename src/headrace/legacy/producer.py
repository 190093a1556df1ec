"""`send` and `close`."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterable, Mapping
from typing import Self, cast

from headrace.client.addresses import Endpoint
from headrace.errors import ClosedError
from headrace.legacy import encoders, partitioner
from headrace.legacy.blocking_channel import BlockingChannel, Channel
from headrace.legacy.collator import Collator
from headrace.legacy.errors import QueueFullError
from headrace.legacy.event_handler import DefaultEventHandler
from headrace.legacy.messages import KeyedMessage, Messages
from headrace.legacy.metrics import Counter, ProducerStats
from headrace.legacy.options import OPTIONS, Settings, settings
from headrace.legacy.partition_info import BrokerPartitionInfo
from headrace.legacy.producer_pool import ProducerPool
from headrace.legacy.queue import MessageQueue
from headrace.legacy.send_thread import SendThread
from headrace.legacy.sync_producer import Connect
from headrace.legacy.waiting import SYSTEM_WAITING_CLOCK, WaitingClock
from headrace.producer import process
from headrace.producer.plugins import PluginLoader

log = logging.getLogger("headrace")

_CLOSED = "the producer is closed: make another one"
_FORKED = "this producer was made before fork(), and its connections belong to the parent: make one in the child"


class Producer:
    """The producer of Kafka 0.8. Any number of threads."""

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        clock: WaitingClock = SYSTEM_WAITING_CLOCK,
        connect: Connect | None = None,
        chance: random.Random | None = None,
        **options: object,
    ) -> None:
        """Options by their dotted names in `config`, or as keywords: `metadata_broker_list="localhost:9092"`."""
        self.config = OPTIONS.resolve(("argument", {**(config or {}), **OPTIONS.named(options)}))
        self._settings = settings(self.config)
        self._stats = ProducerStats()
        self._plugins = PluginLoader(self.config)
        self._lock = threading.Lock()  # sync: one call at a time; async: only `close`
        self._why_closed = ""
        handler = self._make_handler(clock, connect or _connect(self._settings), chance or random.Random())
        self.config.warn_of_unused()
        self._handler = handler
        self._queue: MessageQueue | None = None
        self._thread: SendThread | None = None
        if self._settings.is_async:
            self._queue = MessageQueue(self._settings.queue_messages_max, self._settings.enqueue_timeout_ms, clock)
            name = f"headrace-legacy-{self._settings.client_id}"
            batch_messages, age_ms_max = self._settings.batch_messages, self._settings.queue_age_ms_max
            self._thread = SendThread(name, self._queue, handler, batch_messages, age_ms_max, clock)
            self._thread.start()
        process.register(self)

    def _make_handler(self, clock: WaitingClock, connect: Connect, chance: random.Random) -> DefaultEventHandler:
        config, load = self.config, self._plugins.load
        encoder_class = config["serializer.class"]
        key_encoder_class = config["key.serializer.class"] or encoder_class
        encoder = load("serializer.class", encoder_class, encoders.KIND, is_key=False)
        key_encoder = load("key.serializer.class", key_encoder_class, encoders.KIND, is_key=True)
        chosen_partitioner = load("partitioner.class", config["partitioner.class"], partitioner.KIND)
        pool = ProducerPool(self._settings, connect)
        partition_info = BrokerPartitionInfo(self._settings, pool, connect, chance)
        return DefaultEventHandler(
            self._settings,
            encoders.MessageEncoder(encoder, key_encoder, self._stats, is_async=self._settings.is_async),
            Collator(partition_info, chosen_partitioner, chance),
            partition_info,
            pool,
            self._stats,
            clock,
        )

    def send(self, messages: KeyedMessage | Iterable[KeyedMessage]) -> None:
        """Send a message, or many.

        sync: they are sent when it returns, as far as `request.required.acks` can tell; FailedToSendMessageError after
        the last retry. async: they are queued; QueueFullError if they were dropped. What becomes of a batch after
        that is logged and counted.
        """
        if self._why_closed:
            raise ClosedError(self._why_closed)
        queue = self._queue
        try:
            if type(messages) is KeyedMessage:
                if queue is not None:
                    queue.put(messages)
                else:
                    topic, message, key, partition_key = messages
                    self._send_now(Messages([topic], [message], [key], [partition_key]))
            elif queue is not None:
                queue.put_all(_checked(messages))
            else:
                self._send_now(Messages.of(_checked(messages)))
        except QueueFullError as error:
            self._stats.count(Counter.DROPPED_MESSAGES, error.dropped_count)
            raise

    def _send_now(self, messages: Messages[object]) -> None:
        with self._lock:
            if self._why_closed:
                raise ClosedError(self._why_closed)
            self._handler.handle(messages)

    def metrics(self) -> dict[str, int]:
        """DroppedMessages, SerializationErrors, Resends and FailedSends since the start."""
        return self._stats.snapshot()

    def close(self, timeout: float | None = None) -> None:
        """Send what is queued and end; after `timeout` seconds, drop (and count) what is still queued then."""
        with self._lock:
            if self._why_closed:
                return
            self._why_closed = _CLOSED
            process.unregister(self)
            if self._thread is None or self._queue is None:
                self._handler.close()
            else:
                self._queue.close()
                self._thread.join(timeout)
                if self._thread.is_alive():
                    self._drop_queued(self._queue, timeout)
            self._plugins.close()

    def _drop_queued(self, queue: MessageQueue, timeout: float | None) -> None:
        dropped_count = queue.discard()
        self._stats.count(Counter.DROPPED_MESSAGES, dropped_count)
        log.warning("closed after %s s with %d messages still queued: they are dropped", timeout, dropped_count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def warn_of_undelivered(self) -> None:
        """For `process`, at the end of it."""
        if self._queue is not None and len(self._queue):
            log.warning("the process ends with %d messages queued: close() sends them", len(self._queue))

    def after_fork_in_child(self) -> None:
        self._why_closed = _FORKED


def _connect(of: Settings) -> Connect:
    def connect(endpoint: Endpoint) -> Channel:
        return BlockingChannel(endpoint, of.request_timeout_ms, of.send_buffer_bytes)

    return connect


def _checked(messages: Iterable[object]) -> list[KeyedMessage]:
    """All of them, or none: found out before the first one is sent."""
    found = list(messages)
    for other in set(map(type, found)) - {KeyedMessage}:
        raise TypeError(f"send takes a KeyedMessage, or some of them, got {other.__qualname__}")
    return cast(list[KeyedMessage], found)
