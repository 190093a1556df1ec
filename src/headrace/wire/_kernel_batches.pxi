# Batches one after the other, as they lie in a log.

cdef enum:
    BATCH_BYTES_MIN = 49  # what the length of an empty batch says


def cut_batches(data, int64_t offset, int64_t end_offset, int64_t bytes_max):
    """Which whole batches of `data` a read from `offset` up to `end_offset` gets.

    The answer is (start, stop, first offset, next offset, needed). Batches that end before `offset` are skipped. The
    first one that does not is taken whatever its size, more are taken up to `bytes_max` in all. Where that first one
    is not whole, `needed` says how many bytes from `start` on are; then there is nothing between start and stop.
    """
    cdef _View view = _View(data)
    cdef const uint8_t *p
    cdef Py_ssize_t pos = 0, start = -1
    cdef int64_t size, base, last, first = -1, following = -1
    while pos + HEADER_BYTES <= view.size:
        p = view.data + pos
        size = <int64_t><int32_t>hr_get32(p + 8) + 12
        if size < BATCH_BYTES_MIN + 12:
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
            start, first = pos, base
        elif last >= end_offset or pos + size - start > bytes_max or pos + size > view.size:
            break
        following = last + 1
        pos += size
    if start < 0:
        return pos, pos, -1, -1, HEADER_BYTES
    return start, pos, first, following, 0


def scan_batches(data, Py_ssize_t position, int64_t offset_min, Py_ssize_t count_max, bint verify):
    """The headers of up to `count_max` batches from `position` on, and where and why that ended.

    The answer is (headers, position, problem). The first batch must start at `offset_min` or above, each other one
    above the one before it; `verify` checks the checksums. There is a problem if `position` is not the end and the
    batch there is none: it is cut short, or damaged.
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
        return b"a header is cut short"
    size = <int64_t><int32_t>hr_get32(p + 8) + 12
    if size < BATCH_BYTES_MIN + 12:
        return b"a length is too small"
    if p[16] != 2:
        return b"a magic is not 2"
    if size > left:
        return b"a batch is cut short"
    if <int32_t>hr_get32(p + 23) < 0 or <int32_t>hr_get32(p + 57) < 0:
        return b"a count is negative"
    if <int64_t>hr_get64(p) < offset_min:
        return b"an offset goes back"
    if verify:
        if size < GIL_KEPT_BYTES:
            checksum = hr_crc32c(0, p + 21, size - 21)
        else:
            with nogil:
                checksum = hr_crc32c(0, p + 21, size - 21)
        if checksum != hr_get32(p + 17):
            return b"a checksum is wrong"
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
    """What a log asks of records, without taking them apart further.

    For each one (start, end, offset delta, timestamp delta, key, whether it has a value): its bytes with the length
    before them are those from start to end.
    """
    cdef _View view = _View(payload)
    cdef const uint8_t *at = view.data
    cdef const uint8_t *end = view.data + view.size
    cdef const uint8_t *start
    cdef const char *expected
    cdef Parsed r
    cdef list found = []
    cdef int32_t index
    for index in range(record_count):
        _take_turns(index)
        start = at
        expected = _parse_record(&at, end, &r)
        if expected is not NULL:
            raise _malformed(expected, at, view)
        found.append((
            start - view.data, at - view.data, r.offset_delta, r.timestamp_delta, _piece_bytes(&r.key), r.value.size >= 0
        ))
    if at != end:
        raise MalformedError(f"expected {record_count} records, {end - at} bytes are left", offset=at - view.data)
    return found


def find_timestamp(payload, int32_t record_count, int64_t timestamp_delta, int64_t offset_delta):
    """The first record from an offset delta on that has a timestamp delta or a later one: its two deltas, or None."""
    cdef _View view = _View(payload)
    cdef const uint8_t *at = view.data
    cdef const uint8_t *end = view.data + view.size
    cdef const char *expected = NULL
    cdef Parsed r
    cdef int32_t index
    cdef bint found = False
    with nogil:
        for index in range(record_count):
            expected = _parse_record(&at, end, &r)
            if expected is not NULL:
                break
            if r.offset_delta >= offset_delta and r.timestamp_delta >= timestamp_delta:
                found = True
                break
    if expected is not NULL:
        raise _malformed(expected, at, view)
    return (r.offset_delta, r.timestamp_delta) if found else None
