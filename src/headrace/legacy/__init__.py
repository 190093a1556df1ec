"""The producer of Kafka 0.8, with the message formats of its time: for old pipelines and old brokers.

    send ─ sync ──────────────────────────────┐
      └─── async ─► queue ─► send thread ─────┴─► event handler ─► sync producers ─► brokers
                   (bounded)  (count or age)      (retry loop)     (one per broker)

    producer          `send` and `close`
    options           the options of 0.8
    messages          messages in columns
    queue             the bounded queue and the send thread
    event_handler     serialize, partition, group by broker, send, retry; metrics
    partitioner       the partition of a key; grouping of messages by leader and partition
    sync_producer     requests to one broker, the pool of all leaders, topic metadata
    blocking_channel  a blocking connection

It shares `wire`, errors and serializers with headrace.Producer, which is the better choice unless a broker or a
consumer is too old for it.
"""

from headrace.legacy.event_handler import FailedToSendMessageError
from headrace.legacy.messages import KeyedMessage
from headrace.legacy.partitioner import Partitioner
from headrace.legacy.producer import Producer
from headrace.legacy.queue import QueueFullError

__all__ = ["FailedToSendMessageError", "KeyedMessage", "Partitioner", "Producer", "QueueFullError"]
