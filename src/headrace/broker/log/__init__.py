"""Storage: the logs of partitions, on disk in Apache Kafka's formats.

manager.py      all logs of a root folder, and what is done to them in the background
log.py          one log: append and read
validation.py   what a batch must be; conversion.py: what it is made into
segment.py      a file of batches; index.py: its indexes
producer_state.py, snapshots.py, aborted.py, epochs.py   what a log knows beside its records
recovery.py     from a folder to a log; replaying.py, truncation.py
retention.py, compaction.py, flushing.py, lookup.py      what else is done with it
"""

from headrace.broker.log.aborted import AbortedTransaction
from headrace.broker.log.config import LogConfig
from headrace.broker.log.log import AppendInfo, Log
from headrace.broker.log.lookup import FoundOffset
from headrace.broker.log.manager import LogManager
from headrace.broker.log.producer_state import ProducerView
from headrace.broker.log.segment import Slice
from headrace.broker.log.validation import Origin, Prepared

__all__ = [
    "AbortedTransaction",
    "AppendInfo",
    "FoundOffset",
    "Log",
    "LogConfig",
    "LogManager",
    "Origin",
    "Prepared",
    "ProducerView",
    "Slice",
]
