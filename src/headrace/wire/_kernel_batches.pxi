# Consecutive record batches, as in a log segment.

cdef enum:
    BATCH_LENGTH_MIN = 49  # the length field of an empty batch


def cut_batches(data, int64_t offset, int64_t end_offset, int64_t bytes_max):
    """Return the complete batches in `data` for a read from `offset` up to `end_offset`.

    Returns (start, stop, first offset, next offset, needed). Batches that end before `offset` are skipped. The first
    other batch is always included, further ones up to `bytes_max` in total. If that first batch is incomplete, start
    and stop are equal, and `needed` is the number of bytes from `start` that it needs.
    """
    cdef _View view = _View(data)
    cdef const uint8_t *p
    cdef Py_ssize_t pos = 0, start = -1
    cdef int64_t size, base, last, first_offset = -1, next_offset = -1
    while pos + HEADER_BYTES <= view.size:
        p = view.data + pos
        size = <int64_t><int32_t>hr_get32(p + 8) + 12
        if size < BATCH_LENGTH_MIN + 12:
            raise CorruptBatchError(f"expected a batch of {HEADER_BYTES} bytes or more, got {size} (at {pos})")
        base = <int64_t>hr_get64(p)
        last = base + <int32_t>hr_get32(p + 23)
        if start < 0:
            if last < offset:
                pos += size
                continue
            if last >= end_offset:
                return pos, pos, -1, -1, 0
            if pos + size > view.size:
                return pos, pos, -1, -1, size
            start, first_offset = pos, base
        elif last >= end_offset or pos + size - start > bytes_max or pos + size > view.size:
            break
        next_offset = last + 1
        pos += size
    if start < 0:
        return pos, pos, -1, -1, HEADER_BYTES
    return start, pos, first_offset, next_offset, 0


def scan_batches(data, Py_ssize_t position, int64_t offset_min, Py_ssize_t count_max, bint verify):
    """Return (headers, position, problem): the headers of up to `count_max` batches, and the position after them.

    The base offset of each batch must be above the last offset before it, of the first one at least `offset_min`;
    `verify` checks the checksums. `problem` says why the batch at `position` is invalid or truncated; otherwise it
    is empty.
    """
    cdef _View view = _View(data)
    cdef list headers = []
    cdef const char *problem
    cdef const uint8_t *p
    while position < view.size and len(headers) < count_max:
        p = view.data + position
        problem = _batch_problem(p, view.size - position, offset_min, verify)
        if problem is not NULL:
            return headers, position, problem.decode()
        headers.append(_batch_header(p))
        offset_min = <int64_t>hr_get64(p) + <int32_t>hr_get32(p + 23) + 1
        position += <int32_t>hr_get32(p + 8) + 12
    return headers, position, ""


cdef const char *_batch_problem(const uint8_t *p, Py_ssize_t left, int64_t offset_min, bint verify):
    cdef int64_t size
    cdef uint32_t checksum
    if left < HEADER_BYTES:
        return b"a header is truncated"
    size = <int64_t><int32_t>hr_get32(p + 8) + 12
    if size < BATCH_LENGTH_MIN + 12:
        return b"a length is too small"
    if p[16] != 2:
        return b"the magic is not 2"
    if size > left:
        return b"a batch is truncated"
    if <int32_t>hr_get32(p + 23) < 0 or <int32_t>hr_get32(p + 57) < 0:
        return b"a count is negative"
    if <int64_t>hr_get64(p) < offset_min:
        return b"an offset is lower than the one before"  # OFFSET_PROBLEM
    if verify:
        if size < GIL_KEPT_BYTES:
            checksum = hr_crc32c(0, p + 21, size - 21)
        else:
            with nogil:
                checksum = hr_crc32c(0, p + 21, size - 21)
        if checksum != hr_get32(p + 17):
            return b"a checksum is wrong"  # CHECKSUM_PROBLEM
    return NULL


cdef object _batch_header(const uint8_t *p):
    header = named_tuple(BatchHeader, 13)
    set_item(header, 0, PyLong_FromLongLong(<int64_t>hr_get64(p)))
    set_item(header, 1, PyLong_FromLong(<int32_t>hr_get32(p + 8)))
    set_item(header, 2, PyLong_FromLong(<int32_t>hr_get32(p + 12)))
    set_item(header, 3, PyLong_FromLong(<int>p[16]))
    set_item(header, 4, PyLong_FromLongLong(hr_get32(p + 17)))
    set_item(header, 5, PyLong_FromLong(<int>(<uint16_t>hr_get16(p + 21) ^ 0x8000) - 0x8000))
    set_item(header, 6, PyLong_FromLong(<int32_t>hr_get32(p + 23)))
    set_item(header, 7, PyLong_FromLongLong(<int64_t>hr_get64(p + 27)))
    set_item(header, 8, PyLong_FromLongLong(<int64_t>hr_get64(p + 35)))
    set_item(header, 9, PyLong_FromLongLong(<int64_t>hr_get64(p + 43)))
    set_item(header, 10, PyLong_FromLong(<int>(<uint16_t>hr_get16(p + 51) ^ 0x8000) - 0x8000))
    set_item(header, 11, PyLong_FromLong(<int32_t>hr_get32(p + 53)))
    set_item(header, 12, PyLong_FromLong(<int32_t>hr_get32(p + 57)))
    return header


def scan_records(payload, int32_t record_count):
    """Return (start, end, offset delta, timestamp delta, key, has a value) of each record, for log compaction.

    `start` and `end` are the bounds of the record with its length prefix.
    """
    cdef _View view = _View(payload)
    cdef const uint8_t *at = view.data
    cdef const uint8_t *end = view.data + view.size
    cdef const uint8_t *start
    cdef const char *expected
    cdef Parsed r
    cdef list records = []
    cdef int32_t index
    for index in range(record_count):
        _yield_gil(index)
        start = at
        expected = _parse_record(&at, end, &r)
        if expected is not NULL:
            raise _malformed(expected, at, view)
        records.append((
            start - view.data, at - view.data, r.offset_delta, r.timestamp_delta, _piece_bytes(&r.key), r.value.size >= 0
        ))
    if at != end:
        raise MalformedError(f"expected {record_count} records, {end - at} bytes are left", offset=at - view.data)
    return records


def find_timestamp(payload, int32_t record_count, int64_t timestamp_delta, int64_t offset_delta):
    """Return the deltas of the first record with at least these deltas, as (offset, timestamp); None without one."""
    cdef _View view = _View(payload)
    cdef const uint8_t *at = view.data
    cdef const uint8_t *end = view.data + view.size
    cdef const char *expected = NULL
    cdef Parsed r
    cdef int32_t index
    cdef bint matches = False
    with nogil:
        for index in range(record_count):
            expected = _parse_record(&at, end, &r)
            if expected is not NULL:
                break
            if r.offset_delta >= offset_delta and r.timestamp_delta >= timestamp_delta:
                matches = True
                break
    if expected is not NULL:
        raise _malformed(expected, at, view)
    return (r.offset_delta, r.timestamp_delta) if matches else None
