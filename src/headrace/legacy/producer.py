"""The producer of Kafka 0.8: `send` and `close`."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self, Unpack, cast

from headrace.client.addresses import Endpoint
from headrace.client.plugins import PluginLoader
from headrace.config import Config
from headrace.errors import ClosedError
from headrace.legacy import partitioner
from headrace.legacy.blocking_channel import BlockingChannel, Channel
from headrace.legacy.event_handler import ENCODER_KIND, Counter, DefaultEventHandler, MessageEncoder, ProducerStats
from headrace.legacy.messages import KeyedMessage, Messages
from headrace.legacy.options import OPTIONS, LegacySettings, resolve_settings
from headrace.legacy.queue import SYSTEM_WAITING_CLOCK, MessageQueue, QueueFullError, SendThread, WaitingClock
from headrace.legacy.sync_producer import BrokerPartitionInfo, Connect, ProducerPool
from headrace.producer import process

if TYPE_CHECKING:
    from headrace.config.option_types import LegacyProducerOptions

log = logging.getLogger("headrace")

_CLOSED = "the producer is closed; create a new one"
_FORKED = "this producer was created before fork() and belongs to the parent process; create one in the child"


class Producer:
    """The producer of Kafka 0.8. Thread-safe."""

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        clock: WaitingClock = SYSTEM_WAITING_CLOCK,
        connect: Connect | None = None,
        rng: random.Random | None = None,
        **options: Unpack[LegacyProducerOptions],
    ) -> None:
        """Options have dotted names in `config`; as keywords they have underscores (`metadata_broker_list=…`)."""
        self.config: Config = OPTIONS.resolve(("argument", {**(config or {}), **OPTIONS.named(options)}))
        self._settings = resolve_settings(self.config)
        self._stats = ProducerStats()
        self._plugins = PluginLoader(self.config)
        self._lock = threading.Lock()  # sync: one call at a time; async: only `close`
        self._closed_reason = ""
        handler = self._make_handler(clock, connect or _connect(self._settings), rng or random.Random())
        self.config.warn_of_unused()
        self._handler = handler
        self._queue: MessageQueue | None = None
        self._thread: SendThread | None = None
        if self._settings.is_async:
            self._queue = MessageQueue(self._settings.queue_messages_max, self._settings.enqueue_timeout_ms, clock)
            name = f"headrace-legacy-{self._settings.client_id}"
            self._thread = SendThread(
                name,
                self._queue,
                handler,
                batch_messages=self._settings.batch_messages,
                age_ms_max=self._settings.queue_age_ms_max,
                clock=clock,
            )
            self._thread.start()
        process.register(self)

    def _make_handler(self, clock: WaitingClock, connect: Connect, rng: random.Random) -> DefaultEventHandler:
        config, load = self.config, self._plugins.load
        encoder_class = config["serializer.class"]
        key_encoder_class = config["key.serializer.class"] or encoder_class
        encoder = load("serializer.class", encoder_class, ENCODER_KIND, is_key=False)
        key_encoder = load("key.serializer.class", key_encoder_class, ENCODER_KIND, is_key=True)
        partitioner_ = load("partitioner.class", config["partitioner.class"], partitioner.KIND)
        pool = ProducerPool(self._settings, connect)
        partition_info = BrokerPartitionInfo(self._settings, pool, connect, rng)
        return DefaultEventHandler(
            self._settings,
            MessageEncoder(encoder, key_encoder, self._stats, is_async=self._settings.is_async),
            partitioner.Collator(partition_info, partitioner_, rng),
            partition_info=partition_info,
            pool=pool,
            stats=self._stats,
            clock=clock,
        )

    def send(self, messages: KeyedMessage | Iterable[KeyedMessage]) -> None:
        """Send one or several messages.

        sync: returns when they are acknowledged according to `request.required.acks`; raises FailedToSendMessageError
        after the last retry. async: queues them; raises QueueFullError if some are dropped. Later failures are logged
        and counted.
        """
        if self._closed_reason:
            raise ClosedError(self._closed_reason)
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
            if self._closed_reason:
                raise ClosedError(self._closed_reason)
            self._handler.handle(messages)

    def metrics(self) -> dict[str, int]:
        """Return DroppedMessages, SerializationErrors, Resends and FailedSends since the start."""
        return self._stats.snapshot()

    def close(self, timeout: float | None = None) -> None:
        """Send the queued messages and close; after `timeout` seconds, drop and count the rest."""
        with self._lock:
            if self._closed_reason:
                return
            self._closed_reason = _CLOSED
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
        log.warning("close timed out after %s s: dropped %d queued messages", timeout, dropped_count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def warn_of_undelivered(self) -> None:
        """Warn of queued messages at the exit of the process; called by `process`."""
        if self._queue is not None and len(self._queue):
            log.warning("the process exits with %d queued messages, which are lost; call close()", len(self._queue))

    def after_fork_in_child(self) -> None:
        self._closed_reason = _FORKED


def _connect(settings: LegacySettings) -> Connect:
    def connect(endpoint: Endpoint) -> Channel:
        return BlockingChannel(endpoint, settings.request_timeout_ms, settings.send_buffer_bytes)

    return connect


def _checked(messages: Iterable[object]) -> list[KeyedMessage]:
    """Check the types of all messages before the first one is sent."""
    checked = list(messages)
    for other in set(map(type, checked)) - {KeyedMessage}:
        raise TypeError(f"send expects one KeyedMessage or several, got {other.__qualname__}")
    return cast(list[KeyedMessage], checked)
