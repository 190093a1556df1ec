"""The producer of Kafka 0.8, on the formats of its time: for old pipelines and old brokers.

    send ─ sync ──────────────────────────────┐
      └─── async ─► queue ─► send thread ─────┴─► event handler ─► sync producers ─► brokers
                   (bounded)  (count or age)      (retry loop)     (one a broker)

    producer          `send` and `close`
    options           the options of 0.8, by their names
    messages          what is sent, in columns
    queue             bounded, with three ways to treat who finds it full
    send_thread       empties the queue by count or by age
    event_handler     serialise, partition, group by broker, send; what failed, again
    encoders          values and keys become bytes
    collator          where each message goes; partitioner has the hash of its key
    partition_info    who leads what: topic metadata, renewed by time and after failures
    producer_pool     a sync producer for each leader
    sync_producer     one request, one answer, over a blocking_channel
    formats           whether a broker still takes message sets
    metrics, errors, waiting

It shares `wire`, the errors and the serializers with today's producer, and is the better choice only where a broker, or
whoever reads its topics, is older than that one.
"""

from headrace.legacy.errors import FailedToSendMessageError, QueueFullError
from headrace.legacy.messages import KeyedMessage
from headrace.legacy.partitioner import Partitioner
from headrace.legacy.producer import Producer

__all__ = ["FailedToSendMessageError", "KeyedMessage", "Partitioner", "Producer", "QueueFullError"]
