# Messages of magic 0 and 1.

cdef enum:
    OLD_PREFIX_BYTES = 12  # offset and size: what the size does not count
    OLD_MAGIC_OFFSET = 16  # offset, size, crc
    OLD_SIZE_MIN = 14  # an empty message of magic 0; as much as magic 1 has before the key


cdef class _Pieces:
    """The bytes of a list of bytes, other buffers and None, held while this lives."""

    cdef list kept
    cdef Piece *pieces
    cdef int64_t total_bytes

    def __cinit__(self, values):
        cdef Py_ssize_t place
        self.kept = []
        for place, value in enumerate(values):
            _take_turns(place)
            self.kept.append(value if value is None or type(value) is bytes else bytes(value))
        self.pieces = <Piece *>PyMem_Malloc(sizeof(Piece) * (len(self.kept) + 1))
        if self.pieces is NULL:
            raise MemoryError()
        self.total_bytes = 0
        for place, value in enumerate(self.kept):
            _take_turns(place)
            if value is None:
                self.pieces[place].data = NULL
                self.pieces[place].size = -1
            else:
                self.pieces[place].data = <const uint8_t *>PyBytes_AS_STRING(value)
                self.pieces[place].size = PyBytes_GET_SIZE(value)
                self.total_bytes += self.pieces[place].size

    def __dealloc__(self):
        PyMem_Free(self.pieces)


cdef inline uint8_t *_put_old_piece(uint8_t *p, Piece *piece) noexcept nogil:
    hr_put32(p, <uint32_t>piece.size)
    p += 4
    if piece.size > 0:
        memcpy(p, piece.data, piece.size)
        p += piece.size
    return p


def encode_messages(offsets, timestamps, keys, values, int magic, int attributes):
    """Entries one after another. Magic 0 leaves the timestamps out."""
    cdef _Pieces key_pieces = _Pieces(keys), value_pieces = _Pieces(values)
    cdef Py_ssize_t count = len(value_pieces.kept)
    if len(key_pieces.kept) != count or len(offsets) != count or len(timestamps) != count:
        raise ValueError("expected as many offsets, timestamps and keys as values")
    cdef Py_ssize_t head_bytes = OLD_MAGIC_OFFSET + (2 if magic == 0 else 10)
    cdef bytes result = PyBytes_FromStringAndSize(
        NULL, count * (head_bytes + 8) + key_pieces.total_bytes + value_pieces.total_bytes
    )
    cdef uint8_t *entry = <uint8_t *>PyBytes_AS_STRING(result)
    cdef uint8_t *p
    cdef Py_ssize_t place = 0
    cdef int64_t offset, timestamp
    cdef uint32_t checksum
    for offset, timestamp in zip(offsets, timestamps):
        _take_turns(place)
        p = entry + OLD_MAGIC_OFFSET
        p[0] = magic
        p[1] = attributes
        if magic:
            hr_put64(p + 2, <uint64_t>timestamp)
        p = _put_old_piece(entry + head_bytes, &key_pieces.pieces[place])
        p = _put_old_piece(p, &value_pieces.pieces[place])
        hr_put64(entry, <uint64_t>offset)
        hr_put32(entry + 8, <uint32_t>(p - entry - OLD_PREFIX_BYTES))
        if p - entry >= GIL_KEPT_BYTES:
            with nogil:
                checksum = hr_crc32(entry + OLD_MAGIC_OFFSET, p - entry - OLD_MAGIC_OFFSET)
        else:
            checksum = hr_crc32(entry + OLD_MAGIC_OFFSET, p - entry - OLD_MAGIC_OFFSET)
        hr_put32(entry + 12, checksum)
        entry = p
        place += 1
    return result


cdef inline object _old_piece(const uint8_t **at, const uint8_t *end, bint *fits):
    """The bytes at a place, which moves on behind them."""
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


def decode_messages(data, bint partial_tail):
    """All entries, checked. With `partial_tail` the last one may be cut short, and is left out then."""
    cdef _View view = _View(data)
    cdef const uint8_t *end = view.data + view.size
    cdef const uint8_t *entry = view.data
    cdef const uint8_t *entry_end
    cdef const uint8_t *at
    cdef bint fits = True
    cdef int64_t size
    cdef int magic
    cdef list found = []
    while entry < end:
        _take_turns(len(found))
        size = <int32_t>hr_get32(entry + 8) if end - entry >= OLD_PREFIX_BYTES else OLD_SIZE_MIN
        if size >= OLD_SIZE_MIN and size > end - entry - OLD_PREFIX_BYTES and partial_tail:
            break
        if size < OLD_SIZE_MIN or size > end - entry - OLD_PREFIX_BYTES:
            return _decode_messages_slowly(data, partial_tail)  # which says what is wrong
        entry_end = entry + OLD_PREFIX_BYTES + size
        at = entry + OLD_MAGIC_OFFSET
        magic = at[0]
        if magic > 1 or hr_crc32(at, entry_end - at) != hr_get32(entry + 12):
            return _decode_messages_slowly(data, partial_tail)
        message = named_tuple(OldMessage, 7)
        set_item(message, 0, entry - view.data)
        set_item(message, 1, <int64_t>hr_get64(entry))
        set_item(message, 2, magic)
        set_item(message, 3, <signed char>at[1])
        set_item(message, 4, <int64_t>hr_get64(at + 2) if magic else -1)
        at += 10 if magic else 2
        key = _old_piece(&at, entry_end, &fits)
        set_item(message, 5, key)
        value = _old_piece(&at, entry_end, &fits)
        set_item(message, 6, value)
        if not fits or at != entry_end:
            return _decode_messages_slowly(data, partial_tail)
        found.append(message)
        entry = entry_end
    return found
