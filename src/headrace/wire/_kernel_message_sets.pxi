# Messages of magic 0 and 1.

cdef enum:
    MESSAGE_PREFIX_BYTES = 12  # offset and size, which the size does not include
    MESSAGE_MAGIC_OFFSET = 16  # after offset, size and crc
    MESSAGE_SIZE_MIN = 14  # an empty message of magic 0; magic 1 has as many bytes before the key


cdef class _Pieces:
    """Pointers to the bytes of a list of bytes, other buffers and None; keeps references to them."""

    cdef list kept
    cdef Piece *pieces
    cdef int64_t total_bytes

    def __cinit__(self, values):
        cdef Py_ssize_t index
        self.kept = []
        for index, value in enumerate(values):
            _yield_gil(index)
            self.kept.append(value if value is None or type(value) is bytes else bytes(value))
        self.pieces = <Piece *>PyMem_Malloc(sizeof(Piece) * (len(self.kept) + 1))
        if self.pieces is NULL:
            raise MemoryError()
        self.total_bytes = 0
        for index, value in enumerate(self.kept):
            _yield_gil(index)
            if value is None:
                self.pieces[index].data = NULL
                self.pieces[index].size = -1
            else:
                self.pieces[index].data = <const uint8_t *>PyBytes_AS_STRING(value)
                self.pieces[index].size = PyBytes_GET_SIZE(value)
                self.total_bytes += self.pieces[index].size

    def __dealloc__(self):
        PyMem_Free(self.pieces)


cdef inline uint8_t *_put_message_piece(uint8_t *p, Piece *piece) noexcept nogil:
    hr_put32(p, <uint32_t>piece.size)
    p += 4
    if piece.size > 0:
        memcpy(p, piece.data, piece.size)
        p += piece.size
    return p


def encode_message_set(offsets, timestamps, keys, values, *, int magic, int attributes):
    """Encode entries. Magic 0 has no timestamps."""
    cdef _Pieces key_pieces = _Pieces(keys), value_pieces = _Pieces(values)
    cdef Py_ssize_t count = len(value_pieces.kept)
    if len(key_pieces.kept) != count or len(offsets) != count or len(timestamps) != count:
        raise ValueError("expected as many offsets, timestamps and keys as values")
    cdef Py_ssize_t head_bytes = MESSAGE_MAGIC_OFFSET + (2 if magic == 0 else 10)
    cdef bytes result = PyBytes_FromStringAndSize(
        NULL, count * (head_bytes + 8) + key_pieces.total_bytes + value_pieces.total_bytes
    )
    cdef uint8_t *entry = <uint8_t *>PyBytes_AS_STRING(result)
    cdef uint8_t *p
    cdef Py_ssize_t index = 0
    cdef int64_t offset, timestamp
    cdef uint32_t checksum
    for offset, timestamp in zip(offsets, timestamps):
        _yield_gil(index)
        p = entry + MESSAGE_MAGIC_OFFSET
        p[0] = magic
        p[1] = attributes
        if magic:
            hr_put64(p + 2, <uint64_t>timestamp)
        p = _put_message_piece(entry + head_bytes, &key_pieces.pieces[index])
        p = _put_message_piece(p, &value_pieces.pieces[index])
        hr_put64(entry, <uint64_t>offset)
        hr_put32(entry + 8, <uint32_t>(p - entry - MESSAGE_PREFIX_BYTES))
        if p - entry >= GIL_KEPT_BYTES:
            with nogil:
                checksum = hr_crc32(entry + MESSAGE_MAGIC_OFFSET, p - entry - MESSAGE_MAGIC_OFFSET)
        else:
            checksum = hr_crc32(entry + MESSAGE_MAGIC_OFFSET, p - entry - MESSAGE_MAGIC_OFFSET)
        hr_put32(entry + 12, checksum)
        entry = p
        index += 1
    return result


cdef inline object _message_piece(const uint8_t **at, const uint8_t *end, bint *fits):
    """Return the bytes at `at` and advance it past them; sets `fits` to False if they exceed `end`."""
    cdef int64_t length
    if end - at[0] < 4:
        fits[0] = False
        return None
    length = <int32_t>hr_get32(at[0])
    at[0] += 4
    if length == -1:
        return None
    if length < 0 or length > end - at[0]:
        fits[0] = False
        return None
    at[0] += length
    return PyBytes_FromStringAndSize(<const char *>(at[0] - length), length)


cdef list _decode_in_python(data, bint partial_tail):
    """Decode with the reference, which raises the errors. Imported on first use: a broker starts faster without it."""
    from headrace.wire._reference.message_sets import decode_message_set as decode
    return decode(data, partial_tail)


def decode_message_set(data, bint partial_tail):
    """Decode and check all entries. With `partial_tail`, an incomplete last entry is ignored."""
    cdef _View view = _View(data)
    cdef const uint8_t *end = view.data + view.size
    cdef const uint8_t *entry = view.data
    cdef const uint8_t *entry_end
    cdef const uint8_t *at
    cdef bint fits = True
    cdef int64_t size
    cdef int magic
    cdef list messages = []
    while entry < end:
        _yield_gil(len(messages))
        size = <int32_t>hr_get32(entry + 8) if end - entry >= MESSAGE_PREFIX_BYTES else MESSAGE_SIZE_MIN
        if size >= MESSAGE_SIZE_MIN and size > end - entry - MESSAGE_PREFIX_BYTES and partial_tail:
            break
        if size < MESSAGE_SIZE_MIN or size > end - entry - MESSAGE_PREFIX_BYTES:
            return _decode_in_python(data, partial_tail)  # raises the error
        entry_end = entry + MESSAGE_PREFIX_BYTES + size
        at = entry + MESSAGE_MAGIC_OFFSET
        magic = at[0]
        if magic > 1 or hr_crc32(at, entry_end - at) != hr_get32(entry + 12):
            return _decode_in_python(data, partial_tail)
        message = named_tuple(LegacyMessage, 7)
        set_item(message, 0, entry - view.data)
        set_item(message, 1, <int64_t>hr_get64(entry))
        set_item(message, 2, magic)
        set_item(message, 3, <signed char>at[1])
        set_item(message, 4, <int64_t>hr_get64(at + 2) if magic else -1)
        at += 10 if magic else 2
        key = _message_piece(&at, entry_end, &fits)
        set_item(message, 5, key)
        value = _message_piece(&at, entry_end, &fits)
        set_item(message, 6, value)
        if not fits or at != entry_end:
            return _decode_in_python(data, partial_tail)
        messages.append(message)
        entry = entry_end
    return messages
