# The part of send() that every record goes through.
#
# None of this gives up the GIL half-way: between two threads an append, or closing a batch, happens wholly or not yet.

# Not tracked by the garbage collector, which would cost a third of an append. The only cycle there can be, through
# the callbacks of its batch, is broken when the batch is done.
@cython.no_gc
@cython.freelist(4096)
cdef class RecordFuture:
    """The answer for one record, to come. All of it is in the batch; this only knows its place there."""

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
        """True once there is a result or an error."""
        return self.batch.done_for(self)

    def result(self, timeout=None):
        """Wait (seconds) for the metadata of the record, or raise what became of it."""
        return self.batch.wait(self, timeout)

    def exception(self, timeout=None):
        """Wait for the error; None if there is none."""
        return self.batch.wait_error(self, timeout)

    def add_done_callback(self, callback):
        """Call `callback(future)` when done, on the I/O thread, or at once."""
        self.batch.add_done_callback(self, callback)

    def __await__(self):
        return self.batch.wait_async(self).__await__()


cdef inline int64_t _now_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


cdef class Lane:
    """A topic's open batches, one for each partition.

    The lock is for the reference, which needs one. Without `now_ms`, the system's clock is asked directly: a call
    to Python for the time would cost as much as all the rest.
    """

    cdef readonly str topic
    cdef readonly list open_batches  # OpenBatch or None for each partition
    cdef public int32_t sticky  # the partition of records without a key; -1: not chosen yet
    cdef int32_t partition_count
    cdef Py_ssize_t record_bytes_max
    cdef bint hashes_keys
    cdef object now_ms

    def __init__(self, str topic not None, int32_t partition_count, Py_ssize_t record_bytes_max, bint hashes_keys, lock, now_ms):
        self.topic = topic
        self.open_batches = [None] * partition_count
        self.partition_count = partition_count
        self.record_bytes_max = record_bytes_max
        self.hashes_keys = hashes_keys
        self.now_ms = now_ms
        self.sticky = -1

    def append(self, key, value, partition, timestamp, headers, callback):
        """Put a record of bytes into the open batch of its partition.

        Returns its future, or None where that takes more: another kind of value, a partition that is not known, a
        batch that is full or not there.
        """
        return self.take(key, value, partition, timestamp, headers, callback)

    def append_locked(self, key, value, partition, timestamp, headers, callback):
        """`append` for a thread that holds the lock of the topic: it makes no difference here."""
        return self.take(key, value, partition, timestamp, headers, callback)

    cdef object take(self, key, value, partition, timestamp, headers, callback):
        cdef int32_t place
        cdef int64_t time
        cdef OpenBatch batch
        cdef Piece k, v
        cdef RecordFuture future
        cdef int32_t index
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
            place = partition
        elif k.size >= 0 and self.hashes_keys:
            place = (hr_murmur2(k.data, <int32_t>k.size) & 0x7FFFFFFF) % self.partition_count
        else:
            place = self.sticky
        if place < 0 or place >= self.partition_count:
            return None
        opened = self.open_batches[place]
        if opened is None or k.size + v.size > self.record_bytes_max:
            return None
        batch = <OpenBatch>opened
        if timestamp is not None:
            time = timestamp
            if time < 0:
                return None
        else:
            time = _now_ms() if self.now_ms is None else self.now_ms()
        index = batch.add(time, &k, &v, headers)
        if index < 0:
            return None
        future = RecordFuture.__new__(RecordFuture)
        future.batch = opened
        future.index = index
        future.key_size = <int32_t>k.size
        future.value_size = <int32_t>v.size
        future.timestamp = time
        if callback is not None:
            batch.callbacks.append(future)
            batch.callbacks.append(callback)
        return future


cdef class SendPath:
    """The short way of `send`, for a class to inherit: straight into the lane of the topic, if that will do."""

    cdef public dict lanes  # topic → Lane
    cdef public bint is_short  # False: every record takes the long way

    def send(
        self, topic, value=None, key=None, *, partition=None, timestamp_ms=None, headers=None, on_delivery=None
    ):
        """Queue a record and return its future at once, unless metadata or memory has to be waited for."""
        cdef PyObject *lane
        if self.is_short and headers is None:
            lane = PyDict_GetItem(self.lanes, topic)
            if lane is not NULL:
                future = (<Lane>lane).take(key, value, partition, timestamp_ms, None, on_delivery)
                if future is not None:
                    return future
        return self._send(topic, value, key, partition, timestamp_ms, headers, on_delivery)


def run_callbacks(
    list callbacks, metadata_class, str topic, int32_t partition, int64_t base_offset, int64_t first_index, int64_t append_time
):
    """Tell each callback the metadata of its future. Returns the errors that callbacks raised.

    `first_index` is that of the first record of the batch, where futures count from an earlier one.
    """
    cdef RecordFuture future
    cdef list errors = []
    cdef Py_ssize_t place
    for place in range(0, len(callbacks), 2):
        future = <RecordFuture>callbacks[place]
        metadata = _named_tuple(metadata_class, 6)
        _place(metadata, 0, topic)
        _place(metadata, 1, partition)
        _place(metadata, 2, base_offset + future.index - first_index if base_offset >= 0 else None)
        _place(metadata, 3, append_time if append_time >= 0 else future.timestamp)
        _place(metadata, 4, future.key_size)
        _place(metadata, 5, future.value_size)
        try:
            callbacks[place + 1](metadata, None)
        except BaseException as error:  # sys.exit() in a callback must not end the thread that runs it
            errors.append(error)
    return errors
