"""Storage: the logs of partitions, on disk in Apache Kafka's formats.

manager.py              all logs of a root folder and their background tasks; root_checkpoints.py: their offsets on disk
log.py                  a log: append, read, truncate, flush; log_segments.py: its segments
segment.py, index.py    a file of batches and its indexes; files.py: file names and open files; checkpoints.py
validation.py           checks and converts batches; decompression.py: its limits; config.py: options of a topic
producer_state.py       state of producers; producer_snapshots.py: on disk; replay.py: from batches; epochs.py
loader.py               from a folder to a log; recovery.py: after a crash; verification.py: search for damage
retention.py            deletes old segments; compaction.py and compaction_filter.py keep the last record of each key
"""

from headrace.broker.log.config import LogConfig
from headrace.broker.log.index import AbortedRange
from headrace.broker.log.log import AppendInfo, Log
from headrace.broker.log.log_segments import OffsetAndTimestamp
from headrace.broker.log.manager import LogManager
from headrace.broker.log.producer_state import ProducerView
from headrace.broker.log.segment import Slice
from headrace.broker.log.validation import Origin, Prepared

__all__ = [
    "AbortedRange",
    "AppendInfo",
    "Log",
    "LogConfig",
    "LogManager",
    "OffsetAndTimestamp",
    "Origin",
    "Prepared",
    "ProducerView",
    "Slice",
]
