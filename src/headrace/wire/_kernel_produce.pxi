# Produce requests with one uncompressed batch for one partition, without a message object.

cdef enum:
    FLEXIBLE_MIN = 9
    TOPIC_IDS_MIN = 13
    LOG_START_MIN = 5
    RECORD_ERRORS_MIN = 8
    PLAIN_MASK = 0x3F  # codec, LogAppendTime, transactional, control


def scan_produce(frame, Py_ssize_t position, int version):
    """Return the only batch of a produce request (v3+) from the end of its header on; None if it needs more work.

    A batch that is returned is valid: uncompressed, not transactional, with its checksum and all records checked. For
    anything else, also for invalid requests, None is returned.
    """
    cdef _View view = _View(frame)
    cdef const uint8_t *p = view.data + position
    cdef const uint8_t *end = view.data + view.size
    cdef const uint8_t *topic
    cdef bint flexible = version >= FLEXIBLE_MIN
    cdef int64_t topic_bytes, size
    cdef uint64_t number
    cdef int32_t acks, partition, record_count
    cdef int64_t timeout_ms
    cdef CheckResult result
    if view.size > GIL_KEPT_BYTES or position < 0 or version < 3:
        return None
    # Header tags and transactional id; a null id is one zero byte, or -1.
    if flexible:
        if end - p < 2 + 6 + 1 or p[0] or p[1]:
            return None
        p += 2
    else:
        if end - p < 2 + 6 + 4 or hr_get16(p) != 0xFFFF:
            return None
        p += 2
    acks, timeout_ms = <int32_t>(<uint16_t>hr_get16(p) ^ 0x8000) - 0x8000, <int32_t>hr_get32(p + 2)
    p = _single_item(p + 6, end, flexible)
    if p is NULL:
        return None
    if version >= TOPIC_IDS_MIN:
        topic_bytes = 16
    elif flexible:
        p = hr_get_uvarint(p, end, 32, &number)
        if p is NULL:
            return None
        topic_bytes = <int64_t>number - 1
    else:
        if end - p < 2:
            return None
        topic_bytes = <int64_t>(<uint16_t>hr_get16(p) ^ 0x8000) - 0x8000
        p += 2
    topic = p
    if topic_bytes < 0 or topic_bytes > end - p:
        return None
    if version < TOPIC_IDS_MIN and not hr_is_utf8(topic, topic_bytes):
        return None
    p = _single_item(p + topic_bytes, end, flexible)
    if p is NULL or end - p < 4:
        return None
    partition = <int32_t>hr_get32(p)
    p += 4
    if flexible:
        p = hr_get_uvarint(p, end, 32, &number)
        if p is NULL:
            return None
        size = <int64_t>number - 1
    else:
        if end - p < 4:
            return None
        size = <int32_t>hr_get32(p)
        p += 4
    # Then there are only the empty tags of partition, topic and request.
    if size < HEADER_BYTES or end - p != size + (3 if flexible else 0) or (flexible and (p[size] or p[size + 1] or p[size + 2])):
        return None
    record_count = <int32_t>hr_get32(p + 57)
    if (
        hr_get64(p)
        or <int64_t><int32_t>hr_get32(p + 8) + 12 != size
        or p[16] != 2
        or hr_get16(p + 21) & PLAIN_MASK
        or record_count <= 0
        or <int64_t><int32_t>hr_get32(p + 23) + 1 != record_count
        or (<int64_t>hr_get64(p + 43) != -1 and <int32_t>hr_get32(p + 53) < 0)
        or hr_crc32c(0, p + 21, size - 21) != hr_get32(p + 17)
    ):
        return None
    _check_all(p + HEADER_BYTES, p + size, record_count, &result)
    if result.expected is not NULL or result.index < record_count or result.at != p + size:
        return None
    start = p - view.data
    name = (
        PyBytes_FromStringAndSize(<const char *>topic, 16)
        if version >= TOPIC_IDS_MIN
        else PyUnicode_DecodeUTF8(<const char *>topic, topic_bytes, NULL)
    )
    return SingleBatch(acks, timeout_ms, name, partition, _batch_header(p), start, start + size, result.keyless)


cdef const uint8_t *_single_item(const uint8_t *p, const uint8_t *end, bint flexible):
    """Return the position after the count of an array with one item; NULL otherwise."""
    if flexible:
        return p + 1 if p < end and p[0] == 2 else NULL
    return p + 4 if end - p >= 4 and hr_get32(p) == 1 else NULL


def encode_produced(int version, int32_t correlation_id, topic, int32_t partition, int64_t base_offset, int64_t start_offset):
    """Return the frame of a produce response (v3+) for one batch that was appended with the producer's timestamps.

    `topic` is a name, from v13 on an id.
    """
    cdef bint flexible = version >= FLEXIBLE_MIN
    cdef const char *text
    cdef Py_ssize_t size
    if version >= TOPIC_IDS_MIN:
        text, size = PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)
    else:
        text = PyUnicode_AsUTF8AndSize(topic, &size)
    frame = PyBytes_FromStringAndSize(NULL, 96 + size)
    cdef uint8_t *start = <uint8_t *>PyBytes_AS_STRING(frame)
    cdef uint8_t *p = start + 4
    hr_put32(p, <uint32_t>correlation_id)
    p += 4
    if flexible:
        p[0], p[1] = 0, 2  # header tags, one topic
        p += 2
        if version < TOPIC_IDS_MIN:
            p = hr_put_uvarint(p, <uint64_t>size + 1)
    else:
        hr_put32(p, 1)
        hr_put16(p + 4, <uint16_t>size)
        p += 6
    memcpy(p, text, size)
    p += size
    if flexible:
        p[0] = 2
        p += 1
    else:
        hr_put32(p, 1)
        p += 4
    hr_put32(p, <uint32_t>partition)
    hr_put16(p + 4, 0)  # no error
    hr_put64(p + 6, <uint64_t>base_offset)
    hr_put64(p + 14, <uint64_t>-1)  # the timestamps are the producer's
    p += 22
    if version >= LOG_START_MIN:
        hr_put64(p, <uint64_t>start_offset)
        p += 8
    if flexible:
        p[0], p[1], p[2], p[3] = 1, 0, 0, 0  # no record errors, no message; tags of partition and topic
        p += 4
    elif version >= RECORD_ERRORS_MIN:
        hr_put32(p, 0)
        hr_put16(p + 4, 0xFFFF)
        p += 6
    hr_put32(p, 0)  # throttle time
    p += 4
    if flexible:
        p[0] = 0
        p += 1
    hr_put32(start, <uint32_t>(p - start - 4))
    return frame[: p - start]
