# Record by record encoding and decoding of batches.

cdef class OpenBatch:
    """A batch under construction in a buffer of the caller: the records, with space for the header before them.

    The buffer must not be resized or used elsewhere until the batch is sent.
    """

    def __init__(self, bytearray buffer not None):
        self.room = len(buffer)
        if self.room < HEADER_BYTES:
            raise ValueError(f"expected a buffer of {HEADER_BYTES} bytes or more, got {self.room}")
        self.buffer = buffer
        self.data = <uint8_t *>PyByteArray_AS_STRING(buffer)
        self.used = HEADER_BYTES
        self.records = 0
        self.callbacks = []
        self.first_timestamp = self.highest_timestamp = -1

    def close(self):
        """Reject further records."""
        self.closed = True

    def adopt(self, int32_t record_count, int64_t base_timestamp, int64_t max_timestamp):
        """Use the whole buffer as records that were encoded elsewhere, and close."""
        self.used = self.room
        self.records = record_count
        self.first_timestamp = base_timestamp
        self.highest_timestamp = max_timestamp
        self.closed = True

    @property
    def size(self):
        """The bytes used so far, header included."""
        return self.used

    @property
    def record_count(self):
        return self.records

    @property
    def base_timestamp(self):
        return self.first_timestamp

    @property
    def max_timestamp(self):
        return self.highest_timestamp

    def append(self, int64_t timestamp, key, value, headers=()):
        """Add a record and return its index; -1 if it does not fit or the batch is closed."""
        cdef Piece k, v
        cdef Py_buffer key_buffer, value_buffer
        cdef bint key_held = _get_piece(key, &k, &key_buffer)
        cdef bint value_held
        try:
            value_held = _get_piece(value, &v, &value_buffer)
        except:
            if key_held:
                PyBuffer_Release(&key_buffer)
            raise
        try:
            return self.add(timestamp, &k, &v, headers)
        finally:
            if key_held:
                PyBuffer_Release(&key_buffer)
            if value_held:
                PyBuffer_Release(&value_buffer)

    cdef int32_t add(self, int64_t timestamp, Piece *key, Piece *value, headers) except -2:
        cdef int64_t delta = timestamp - self.first_timestamp if self.records else 0
        cdef bytes extra = None if not headers else _encode_headers(headers)
        cdef Py_ssize_t extra_size = 1 if extra is None else PyBytes_GET_SIZE(extra)
        cdef Py_ssize_t body = 1 + hr_varint_size(delta) + hr_varint_size(self.records) + _piece_size(key) + _piece_size(value) + extra_size
        cdef uint8_t *p
        if self.closed or body > 0x7FFFFFFF or body + hr_varint_size(body) > self.room - self.used:
            return -1
        p = hr_put_varint(self.data + self.used, body)
        p = _put_record_head(p, delta, self.records)
        p = _put_piece(p, key)
        p = _put_piece(p, value)
        if extra is None:
            p[0] = 0
        else:
            memcpy(p, PyBytes_AS_STRING(extra), extra_size)
        self.used = p + extra_size - self.data
        if not self.records:
            self.first_timestamp = timestamp
        if timestamp > self.highest_timestamp or not self.records:
            self.highest_timestamp = timestamp
        self.records += 1
        return self.records - 1


cdef inline bint _get_piece(object value, Piece *piece, Py_buffer *buffer) except -1:
    """Set the piece to the bytes of a value; returns True if `buffer` must be released."""
    if type(value) is bytes:
        piece.data = <const uint8_t *>PyBytes_AS_STRING(value)
        piece.size = PyBytes_GET_SIZE(value)
        return False
    if value is None:
        piece.data = NULL
        piece.size = -1
        return False
    PyObject_GetBuffer(value, buffer, PyBUF_SIMPLE)
    piece.data = <const uint8_t *>buffer.buf
    piece.size = buffer.len
    return True


cdef inline Py_ssize_t _piece_size(Piece *piece) noexcept nogil:
    return hr_varint_size(piece.size) + (piece.size if piece.size > 0 else 0)


cdef inline uint8_t *_put_record_head(uint8_t *p, int64_t timestamp_delta, int32_t offset_delta) noexcept nogil:
    p[0] = 0  # attributes, unused
    p = hr_put_varint(p + 1, timestamp_delta)
    return hr_put_varint(p, offset_delta)


cdef inline uint8_t *_put_piece(uint8_t *p, Piece *piece) noexcept nogil:
    p = hr_put_varint(p, piece.size)
    if piece.size > 0:
        memcpy(p, piece.data, piece.size)
        p += piece.size
    return p


cdef bytes _encode_headers(headers):
    """Encode the count and the headers of a record."""
    cdef _Writer w = _Writer()
    cdef Py_ssize_t size
    cdef const char *text
    cdef _View view
    _write_varint(w, len(headers))
    for key, value in headers:
        text = PyUnicode_AsUTF8AndSize(key, &size)
        _write_varint(w, size)
        w.raw(text, size)
        if value is None:
            _write_varint(w, -1)
        else:
            view = _View(value)
            _write_varint(w, view.size)
            w.raw(view.data, view.size)
    return PyBytes_FromStringAndSize(<char *>w.data, w.used)


cdef int _write_varint(_Writer w, int64_t value) except -1:
    w.used = hr_put_varint(w.reserve(10), value) - w.data
    return 0


def write_header(
    bytearray buffer not None, Py_ssize_t size, *, int64_t base_offset, int32_t leader_epoch, int attributes,
    int64_t base_timestamp, int64_t max_timestamp, int64_t producer_id, int producer_epoch, int32_t base_sequence,
    int32_t record_count,
):
    """Write the header of the batch in the first `size` bytes of `buffer`, the checksum last."""
    cdef uint8_t *p = <uint8_t *>PyByteArray_AS_STRING(buffer)
    if not HEADER_BYTES <= size <= len(buffer):
        raise ValueError(f"expected a batch of {HEADER_BYTES} to {len(buffer)} bytes, got {size}")
    hr_put64(p, <uint64_t>base_offset)
    hr_put32(p + 8, <uint32_t>(size - 12))
    hr_put32(p + 12, <uint32_t>leader_epoch)
    p[16] = 2
    hr_put16(p + 21, <uint16_t>attributes)
    hr_put32(p + 23, <uint32_t>(record_count - 1))
    hr_put64(p + 27, <uint64_t>base_timestamp)
    hr_put64(p + 35, <uint64_t>max_timestamp)
    hr_put64(p + 43, <uint64_t>producer_id)
    hr_put16(p + 51, <uint16_t>producer_epoch)
    hr_put32(p + 53, <uint32_t>base_sequence)
    hr_put32(p + 57, <uint32_t>record_count)
    # The GIL is kept: getting it back from a busy thread could take a thousand times as long as the checksum.
    hr_put32(p + 17, hr_crc32c(0, p + 21, size - 21))


cdef struct Parsed:
    int64_t timestamp_delta, offset_delta
    Piece key, value
    const uint8_t *headers  # from the count on
    const uint8_t *end


cdef const char *_parse_record(const uint8_t **at, const uint8_t *end, Parsed *r) noexcept nogil:
    """Parse the record at `at` and advance `at` past it; on error, return what was expected at `at`, otherwise NULL."""
    cdef int64_t number
    cdef const uint8_t *p = hr_get_varint(at[0], end, 32, &number)
    if p is NULL:
        return b"the length of a record"
    if number < 0 or number > end - p:
        return b"a record within the batch"
    r.end = p + number
    at[0] = p
    if p == r.end:
        return b"the attributes of a record"
    p = hr_get_varint(p + 1, r.end, 64, &r.timestamp_delta)
    if p is NULL:
        return b"a timestamp delta"
    at[0] = p
    p = hr_get_varint(p, r.end, 32, &r.offset_delta)
    if p is NULL:
        return b"an offset delta"
    at[0] = p
    p = _parse_piece(p, r.end, &r.key)
    if p is NULL:
        return b"a key within the record"
    at[0] = p
    p = _parse_piece(p, r.end, &r.value)
    if p is NULL:
        return b"a value within the record"
    r.headers = p
    at[0] = r.end
    return NULL


cdef inline const uint8_t *_parse_piece(const uint8_t *p, const uint8_t *end, Piece *piece) noexcept nogil:
    cdef int64_t size
    p = hr_get_varint(p, end, 32, &size)
    if p is NULL or size < -1 or size > end - p:
        return NULL
    piece.data = p
    piece.size = size
    return p + size if size > 0 else p


cdef const uint8_t *_parse_header_count(const uint8_t *p, const uint8_t *end, int64_t *count) noexcept nogil:
    """Parse the header count; NULL if it is invalid. A header has at least two bytes, which limits the count."""
    p = hr_get_varint(p, end, 32, count)
    if p is NULL or count[0] < 0 or count[0] > (end - p) / 2:
        return NULL
    return p


cdef object _malformed(const char *expected, const uint8_t *at, _View view):
    return MalformedError(
        f"expected {expected.decode()}, {view.size - (at - view.data)} bytes of the records are left",
        offset=at - view.data,
    )


cdef object _piece_bytes(Piece *piece):
    return None if piece.size < 0 else PyBytes_FromStringAndSize(<const char *>piece.data, piece.size)


cdef inline int _yield_gil(Py_ssize_t index) except -1:
    """Release the GIL for other threads every 4096 records: a batch may have millions."""
    if index & 4095 == 4095:
        with nogil:
            pass
    return 0


def decode_records(payload, int32_t record_count, int64_t base_offset, int64_t base_timestamp, int64_t append_time):
    """Decode the records of a decompressed payload. An `append_time` other than -1 replaces all timestamps."""
    cdef _View view = _View(payload)
    cdef const uint8_t *at = view.data
    cdef const uint8_t *end = view.data + view.size
    cdef const char *expected
    cdef Parsed r
    cdef list records = []
    cdef int32_t index
    for index in range(record_count):
        _yield_gil(index)
        expected = _parse_record(&at, end, &r)
        if expected is not NULL:
            raise _malformed(expected, at, view)
        record = named_tuple(Record, 5)
        set_item(record, 0, base_offset + r.offset_delta)
        set_item(record, 1, append_time if append_time >= 0 else base_timestamp + r.timestamp_delta)
        set_item(record, 2, _piece_bytes(&r.key))
        set_item(record, 3, _piece_bytes(&r.value))
        set_item(record, 4, _decode_headers(&r, view))
        records.append(record)
    if at != end:
        raise MalformedError(f"expected {record_count} records, {end - at} bytes are left", offset=at - view.data)
    return records


def decode_consumer_records(
    payload, int32_t record_count, list records not None, *, str topic not None, int32_t partition,
    int64_t base_offset, int64_t base_timestamp, int64_t append_time, int32_t leader_epoch, int64_t first_offset,
):
    """Append the records from `first_offset` on to `records`. An `append_time` other than -1 replaces all timestamps.

    After an error, some records may have been appended.
    """
    cdef _View view = _View(payload)
    cdef const uint8_t *at = view.data
    cdef const uint8_t *end = view.data + view.size
    cdef const char *expected
    cdef Parsed r
    cdef int32_t index
    cdef int64_t timestamp, last_timestamp = append_time
    cdef object timestamp_object = append_time
    cdef object partition_object = partition
    cdef object epoch_object = leader_epoch
    cdef object no_timestamp = -1
    cdef object timestamp_type = 1 if append_time >= 0 else 0
    for index in range(record_count):
        _yield_gil(index)
        expected = _parse_record(&at, end, &r)
        if expected is not NULL:
            raise _malformed(expected, at, view)
        if base_offset + r.offset_delta < first_offset:
            continue
        timestamp = append_time if append_time >= 0 else base_timestamp + r.timestamp_delta
        if timestamp != last_timestamp:
            last_timestamp = timestamp
            timestamp_object = PyLong_FromLongLong(timestamp)
        record = named_tuple(ConsumerRecord, 9)
        set_item(record, 0, topic)
        set_item(record, 1, partition_object)
        set_item(record, 2, PyLong_FromLongLong(base_offset + r.offset_delta))
        set_item(record, 3, timestamp_object)
        set_item(record, 4, timestamp_type if timestamp >= 0 else no_timestamp)
        set_item(record, 5, _piece_bytes(&r.key))
        set_item(record, 6, _piece_bytes(&r.value))
        set_item(record, 7, _decode_headers(&r, view))
        set_item(record, 8, epoch_object)
        # It has only texts, bytes and numbers, so the garbage collector need not visit it.
        PyObject_GC_UnTrack(<PyObject *>record)
        records.append(record)
    if at != end:
        raise MalformedError(f"expected {record_count} records, {end - at} bytes are left", offset=at - view.data)


cdef object _decode_headers(Parsed *r, _View view):
    cdef int64_t count, index
    cdef Piece piece
    cdef const uint8_t *p
    if r.end - r.headers == 1 and r.headers[0] == 0:
        return ()
    p = _parse_header_count(r.headers, r.end, &count)
    if p is NULL:
        raise _malformed(b"a count of headers", r.headers, view)
    headers = PyTuple_New(count)
    for index in range(count):
        at = p
        p = _parse_piece(p, r.end, &piece)
        if p is NULL or piece.size < 0:
            raise _malformed(b"the key of a header", at, view)
        try:
            key = PyUnicode_DecodeUTF8(<const char *>piece.data, piece.size, NULL)
        except UnicodeDecodeError as error:
            raise MalformedError(
                f"expected the key of a header in UTF-8: {error.reason}", offset=piece.data - view.data
            ) from None
        at = p
        p = _parse_piece(p, r.end, &piece)
        if p is NULL:
            raise _malformed(b"the value of a header", at, view)
        set_item(headers, index, (key, _piece_bytes(&piece)))
    if p != r.end:
        raise _malformed(b"the end of the record", p, view)
    return headers


cdef struct CheckResult:
    const uint8_t *at  # where checking stopped
    int32_t index  # of the invalid record there, or the record count if all are valid
    int32_t keyless  # the index of the first record without a key, or -1
    const char *expected  # if a record cannot be parsed: what was expected; otherwise NULL


cdef void _check_all(const uint8_t *at, const uint8_t *end, int32_t record_count, CheckResult *result) noexcept nogil:
    """Check the records up to the first invalid one, without Python objects."""
    cdef Parsed r
    cdef int32_t index
    result.keyless = -1
    result.expected = NULL
    for index in range(record_count):
        result.index = index
        result.at = at
        result.expected = _parse_record(&at, end, &r)
        if result.expected is not NULL:
            result.at = at
            return
        if r.offset_delta != index:
            return
        if r.key.size < 0 and result.keyless < 0:
            result.keyless = index
        if (r.end - r.headers != 1 or r.headers[0] != 0) and not _has_valid_headers(&r):
            return
    result.index = record_count
    result.at = at


cdef bint _has_valid_headers(Parsed *r) noexcept nogil:
    cdef int64_t count, index
    cdef Piece piece
    cdef const uint8_t *p = _parse_header_count(r.headers, r.end, &count)
    if p is NULL:
        return False
    for index in range(count):
        p = _parse_piece(p, r.end, &piece)
        if p is NULL or piece.size < 0 or not hr_is_utf8(piece.data, piece.size):
            return False
        p = _parse_piece(p, r.end, &piece)
        if p is NULL:
            return False
    return p == r.end


def check_records(payload, int32_t record_count):
    """Check the decompressed payload of a batch; raises as `decode_records` does.

    Returns the index of the first record without a key; -1 if all have keys. A large payload is checked without the
    GIL.
    """
    cdef _View view = _View(payload)
    cdef const uint8_t *at
    cdef const uint8_t *end = view.data + view.size
    cdef CheckResult result
    cdef Parsed r
    if view.size < GIL_KEPT_BYTES:
        _check_all(view.data, end, record_count, &result)
    else:
        with nogil:
            _check_all(view.data, end, record_count, &result)
    if result.expected is not NULL:
        raise _malformed(result.expected, result.at, view)
    at = result.at
    if result.index < record_count:
        _parse_record(&at, end, &r)
        if r.offset_delta != result.index:
            raise MalformedError(
                f"expected record {result.index}, got the offset delta {r.offset_delta}", offset=at - view.data
            )
        _decode_headers(&r, view)  # raises the error
    if at != end:
        raise MalformedError(f"expected {record_count} records, {end - at} bytes are left", offset=at - view.data)
    return result.keyless
