# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, embedsignature=True
"""The part of `send()` that runs for every record, compiled. `reference.py` defines what it does.

Nothing here releases the GIL half-way: for other threads, an append has happened completely or not at all. That is why
the compiled `TopicAppender` needs no lock.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from headrace.wire._kernel cimport OpenBatch, Piece, hr_murmur2, named_tuple, set_item

cdef extern from "clock.h" nogil:
    int64_t hr_now_ms()

cdef extern from "Python.h":
    PyObject *PyDict_GetItem(object mapping, object key)


# Not tracked by the garbage collector, which would cost a third of an append. The only possible cycle, through the
# callbacks of the batch, is broken when the batch is done.
@cython.no_gc
@cython.freelist(4096)
cdef class RecordFuture:
    """The pending result of one record. The batch has the result; the future has the record's index in the batch."""

    cdef readonly object batch
    cdef readonly int32_t index
    cdef readonly int32_t key_size, value_size
    cdef readonly int64_t timestamp

    def __init__(self, batch, int32_t index, int32_t key_size, int32_t value_size, int64_t timestamp):
        self.batch = batch
        self.index = index
        self.key_size = key_size
        self.value_size = value_size
        self.timestamp = timestamp

    def done(self):
        """Return True once there is a result or an error."""
        return self.batch.done_for(self)

    def result(self, timeout=None):
        """Wait up to `timeout` seconds for the record's metadata, or raise the error of the send."""
        return self.batch.wait(self, timeout)

    def exception(self, timeout=None):
        """Wait up to `timeout` seconds for the error of the send; None if the record was delivered."""
        return self.batch.wait_error(self, timeout)

    def add_done_callback(self, callback):
        """Call `callback(future)` when done: on the I/O thread, or at once if it is done already."""
        self.batch.add_done_callback(self, callback)

    def __await__(self):
        return self.batch.wait_async(self).__await__()


cdef class TopicAppender:
    """The open batches of a topic, one for each partition.

    `lock` is used by the reference only. Without `now_ms`, the system's clock is read directly: a Python call for
    the time would cost as much as the rest of an append.
    """

    cdef readonly str topic
    cdef readonly list open_batches  # OpenBatch or None for each partition
    cdef public int32_t sticky_partition  # of records without a key; -1: not chosen yet
    cdef int32_t partition_count
    cdef Py_ssize_t record_bytes_max
    cdef bint hashes_keys
    cdef object now_ms

    def __init__(
        self, str topic not None, int32_t partition_count, *, Py_ssize_t record_bytes_max, bint hashes_keys, lock, now_ms
    ):
        self.topic = topic
        self.open_batches = [None] * partition_count
        self.partition_count = partition_count
        self.record_bytes_max = record_bytes_max
        self.hashes_keys = hashes_keys
        self.now_ms = now_ms
        self.sticky_partition = -1

    def retire(self):
        """Accept no more records: another appender takes over, or the producer is unusable."""
        self.open_batches = [None] * self.partition_count

    def try_append(self, key, value, partition, timestamp_ms, headers, on_delivery):
        """Append a record to the open batch of its partition and return its future.

        Return None where more is needed: a key or value that is not bytes, an unknown partition, no open batch, or
        no room in it.
        """
        return self.append(key, value, partition, timestamp_ms, headers, on_delivery)

    def try_append_locked(self, key, value, partition, timestamp_ms, headers, on_delivery):
        """`try_append` for a thread that holds the topic's lock. The same here."""
        return self.append(key, value, partition, timestamp_ms, headers, on_delivery)

    cdef object append(self, key, value, partition, timestamp_ms, headers, on_delivery):
        cdef int32_t number, index
        cdef int64_t timestamp
        cdef OpenBatch batch
        cdef Piece k, v
        cdef RecordFuture future
        if value is None:
            v.data = NULL
            v.size = -1
        elif type(value) is bytes:
            v.data = <const uint8_t *>PyBytes_AS_STRING(value)
            v.size = PyBytes_GET_SIZE(value)
        else:
            return None
        if key is None:
            k.data = NULL
            k.size = -1
        elif type(key) is bytes:
            k.data = <const uint8_t *>PyBytes_AS_STRING(key)
            k.size = PyBytes_GET_SIZE(key)
        else:
            return None
        if partition is not None:
            number = partition
        elif k.size >= 0 and self.hashes_keys:
            number = (hr_murmur2(k.data, <int32_t>k.size) & 0x7FFFFFFF) % self.partition_count
        else:
            number = self.sticky_partition
        if number < 0 or number >= self.partition_count:
            return None
        open_batch = self.open_batches[number]
        if open_batch is None or k.size + v.size > self.record_bytes_max:
            return None
        batch = <OpenBatch>open_batch
        if timestamp_ms is not None:
            timestamp = timestamp_ms
            if timestamp < 0:
                return None
        else:
            timestamp = hr_now_ms() if self.now_ms is None else self.now_ms()
        index = batch.add(timestamp, &k, &v, headers)
        if index < 0:
            return None
        future = RecordFuture.__new__(RecordFuture)
        future.batch = open_batch
        future.index = index
        future.key_size = <int32_t>k.size
        future.value_size = <int32_t>v.size
        future.timestamp = timestamp
        if on_delivery is not None:
            batch.callbacks.append(future)
            batch.callbacks.append(on_delivery)
        return future


cdef class FastSend:
    """A base class with the fast path of `send`: append to the open batch if that is all that is needed."""

    cdef public dict _appenders  # topic → TopicAppender
    cdef public bint _fast_send_enabled  # False: every record goes through `_send`
    cdef object _last_topic  # of the last record, with its appender: looking it up would take a tenth of `send`
    cdef TopicAppender _last_appender

    def send(
        self, topic, value=None, key=None, *, partition=None, timestamp_ms=None, headers=None, on_delivery=None
    ):
        """Queue a record and return its future at once. Blocks only for metadata and memory, up to max.block.ms."""
        cdef PyObject *item
        cdef TopicAppender appender
        if self._fast_send_enabled and headers is None:
            appender = self._last_appender if topic is self._last_topic else None
            if appender is None:
                item = PyDict_GetItem(self._appenders, topic)
                if item is not NULL:
                    appender = <TopicAppender>item
                    self._last_topic = topic
                    self._last_appender = appender
            if appender is not None:
                future = appender.append(key, value, partition, timestamp_ms, None, on_delivery)
                if future is not None:
                    return future
                self._last_appender = None
        return self._send(topic, value, key, partition, timestamp_ms, headers, on_delivery)


def run_callbacks(
    list callbacks, metadata_class, str topic, int32_t partition, int64_t base_offset, int64_t first_index, int64_t append_time
):
    """Call each delivery callback with the metadata of its record. Return the exceptions that callbacks raised.

    `first_index` is the index of the batch's first record: above 0 if the batch was split off another one.
    """
    cdef RecordFuture future
    cdef list errors = []
    cdef Py_ssize_t i
    for i in range(0, len(callbacks), 2):
        future = <RecordFuture>callbacks[i]
        metadata = named_tuple(metadata_class, 6)
        set_item(metadata, 0, topic)
        set_item(metadata, 1, partition)
        set_item(metadata, 2, base_offset + future.index - first_index if base_offset >= 0 else None)
        set_item(metadata, 3, append_time if append_time >= 0 else future.timestamp)
        set_item(metadata, 4, future.key_size)
        set_item(metadata, 5, future.value_size)
        try:
            callbacks[i + 1](metadata, None)
        except BaseException as error:  # sys.exit() in a callback must not end the thread that runs it
            errors.append(error)
    return errors
