# Record batches from and to Arrow columns, without a Python object per row.

cdef enum:
    RECORD_OVERHEAD_BYTES_MAX = 36
    RECORD_BYTES_MIN = 7
    COLUMN_BYTES_MAX = 0x7FFFFFFF  # offsets are int32


cdef class _BytesColumn:
    """Pointers to the buffers of a column of bytes."""

    cdef _View validity_view, offsets_view, data_view
    cdef const uint8_t *validity
    cdef const int32_t *offsets
    cdef const int64_t *large_offsets
    cdef const uint8_t *data
    cdef int64_t first

    def __cinit__(self, column):
        validity, offsets, data, self.first, large = column
        self.offsets_view = _View(offsets)
        self.data_view = _View(data)
        self.data = self.data_view.data
        if validity is not None:
            self.validity_view = _View(validity)
            self.validity = self.validity_view.data
        if large:
            self.large_offsets = <const int64_t *>self.offsets_view.data + self.first
        else:
            self.offsets = <const int32_t *>self.offsets_view.data + self.first

    cdef inline void at(self, int64_t row, Piece *piece) noexcept nogil:
        cdef int64_t start
        if self.validity is not NULL and not _bit(self.validity, self.first + row):
            piece.size = -1
        elif self.offsets is not NULL:
            start = self.offsets[row]
            piece.size = self.offsets[row + 1] - start
            piece.data = self.data + start
        else:
            start = self.large_offsets[row]
            piece.size = self.large_offsets[row + 1] - start
            piece.data = self.data + start

    cdef inline int64_t span(self, int64_t row, int64_t end) noexcept nogil:
        """Return the data bytes of a range of rows, including those of null rows."""
        if self.offsets is not NULL:
            return self.offsets[end] - self.offsets[row]
        return self.large_offsets[end] - self.large_offsets[row]


cdef class _HeadersColumn:
    """Pointers to the buffers of a column of lists of (key, value)."""

    cdef _View validity_view, offsets_view
    cdef const uint8_t *validity
    cdef const int32_t *offsets
    cdef int64_t first
    cdef _BytesColumn keys, values

    def __cinit__(self, column):
        validity, offsets, self.first, keys, values = column
        self.offsets_view = _View(offsets)
        self.offsets = <const int32_t *>self.offsets_view.data + self.first
        if validity is not None:
            self.validity_view = _View(validity)
            self.validity = self.validity_view.data
        self.keys = _BytesColumn(keys)
        self.values = _BytesColumn(values)

    cdef inline bint missing(self, int64_t row) noexcept nogil:
        return self.validity is not NULL and not _bit(self.validity, self.first + row)

    cdef Py_ssize_t size(self, int64_t row) noexcept nogil:
        """Return the encoded size of a row's header count and headers."""
        cdef int64_t item
        cdef Piece key, value
        cdef Py_ssize_t size
        if self.missing(row):
            return 1
        size = hr_varint_size(self.offsets[row + 1] - self.offsets[row])
        for item in range(self.offsets[row], self.offsets[row + 1]):
            self.keys.at(item, &key)
            self.values.at(item, &value)
            size += _piece_size(&key) + _piece_size(&value)
        return size

    cdef uint8_t *put(self, uint8_t *p, int64_t row) noexcept nogil:
        cdef int64_t item
        cdef Piece piece
        if self.missing(row):
            return hr_put_varint(p, 0)
        p = hr_put_varint(p, self.offsets[row + 1] - self.offsets[row])
        for item in range(self.offsets[row], self.offsets[row + 1]):
            self.keys.at(item, &piece)
            p = _put_piece(p, &piece)
            self.values.at(item, &piece)
            p = _put_piece(p, &piece)
        return p


cdef inline bint _bit(const uint8_t *bits, int64_t index) noexcept nogil:
    return bits[index >> 3] >> (index & 7) & 1


def partition_keys(keys, int64_t row_count, int32_t partition_count):
    """Return the partition of each key as int32: `(murmur2 & 0x7fffffff) % partition_count`, -1 for a null key."""
    cdef _BytesColumn column = _BytesColumn(keys)
    cdef bytearray result = PyByteArray_FromStringAndSize(NULL, row_count * 4)
    cdef int32_t *out = <int32_t *>PyByteArray_AS_STRING(result)
    cdef int64_t row
    cdef Piece key
    with nogil:
        for row in range(row_count):
            column.at(row, &key)
            if key.size < 0:
                out[row] = -1
            else:
                out[row] = (hr_murmur2(key.data, <int32_t>key.size) & 0x7FFFFFFF) % partition_count
    return result


def largest_row(keys, values not None, int64_t row_count):
    """Return the first row with the most bytes in key and value, and that number; (-1, 0) if there are no rows."""
    cdef _BytesColumn key_column = None if keys is None else _BytesColumn(keys)
    cdef _BytesColumn value_column = _BytesColumn(values)
    cdef bint has_keys = key_column is not None
    cdef int64_t row, largest = -1
    cdef Py_ssize_t size, size_max = -1
    cdef Piece piece
    with nogil:
        for row in range(row_count):
            value_column.at(row, &piece)
            size = piece.size if piece.size > 0 else 0
            if has_keys:
                key_column.at(row, &piece)
                size += piece.size if piece.size > 0 else 0
            if size > size_max:
                largest, size_max = row, size
    return largest, max(size_max, 0)


def hash_rows(bytes topic not None, keys, values not None, headers, int64_t row_count):
    """Return the sum, modulo 2^64, of the hashes of all rows over topic, key, value and headers, in any order.

    A row without headers equals one with null headers.
    """
    cdef _BytesColumn key_column = None if keys is None else _BytesColumn(keys)
    cdef _BytesColumn value_column = _BytesColumn(values)
    cdef _HeadersColumn header_column = None if headers is None else _HeadersColumn(headers)
    cdef bint has_keys = key_column is not None, has_headers = header_column is not None
    cdef uint64_t seed = hr_hash_cell(
        HR_HASH_START, <const uint8_t *>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)
    )
    cdef uint64_t keyless = hr_hash_cell(seed, NULL, -1), hashed, total = 0
    cdef int64_t row, item
    cdef Piece piece
    with nogil:
        for row in range(row_count):
            hashed = keyless
            if has_keys:
                key_column.at(row, &piece)
                hashed = hr_hash_cell(seed, piece.data, piece.size)
            value_column.at(row, &piece)
            hashed = hr_hash_cell(hashed, piece.data, piece.size)
            if has_headers and not header_column.missing(row):
                for item in range(header_column.offsets[row], header_column.offsets[row + 1]):
                    header_column.keys.at(item, &piece)
                    hashed = hr_hash_cell(hashed, piece.data, piece.size)
                    header_column.values.at(item, &piece)
                    hashed = hr_hash_cell(hashed, piece.data, piece.size)
            total += hashed
    return total


cdef struct OpenPartition:
    uint8_t *start  # NULL: no open batch
    uint8_t *at
    uint8_t *end
    int64_t bytes_left  # an upper bound of the size of the remaining records
    int64_t base_timestamp, max_timestamp
    int32_t record_count


cdef class _ColumnEncoder:
    """The open batches of all partitions, and the completed ones."""

    cdef OpenPartition *open_partitions
    cdef list buffers, batches, spare
    cdef Py_ssize_t batch_bytes_max

    def __cinit__(self, int32_t partition_count, Py_ssize_t batch_bytes_max, list spare):
        self.batch_bytes_max = batch_bytes_max
        self.spare = spare
        self.buffers = [None] * partition_count
        self.batches = []
        self.open_partitions = <OpenPartition *>PyMem_Malloc(sizeof(OpenPartition) * (partition_count + 1))
        if self.open_partitions is NULL:
            raise MemoryError()
        memset(self.open_partitions, 0, sizeof(OpenPartition) * (partition_count + 1))

    def __dealloc__(self):
        PyMem_Free(self.open_partitions)

    cdef int open(self, int32_t partition, Py_ssize_t record_bytes) except -1:
        """Open a batch: at most as large as the remaining records need, at least as large as the next record."""
        cdef OpenPartition *o = &self.open_partitions[partition]
        cdef Py_ssize_t room = min(self.batch_bytes_max, HEADER_BYTES + o.bytes_left)
        room = max(room, HEADER_BYTES + record_bytes)
        cdef bytearray buffer = None
        if self.spare:
            # New memory costs a page fault for every 4 KiB, which is more than encoding the records.
            buffer = self.spare.pop()
            try:
                PyByteArray_Resize(buffer, max(len(buffer) - 1, 0))  # a resize to the same size would check nothing
                PyByteArray_Resize(buffer, room)
            except BufferError:
                buffer = None  # a memoryview of it still exists
        if buffer is None:
            buffer = PyByteArray_FromStringAndSize(NULL, room)
        self.buffers[partition] = buffer
        o.start = <uint8_t *>PyByteArray_AS_STRING(buffer)
        o.at = o.start + HEADER_BYTES
        o.end = o.start + room
        o.record_count = 0
        return 0

    cdef int close(self, int32_t partition) except -1:
        cdef OpenPartition *o = &self.open_partitions[partition]
        buffer = self.buffers[partition]
        PyByteArray_Resize(buffer, o.at - o.start)
        self.buffers[partition] = None
        batch = named_tuple(EncodedBatch, 5)
        set_item(batch, 0, partition)
        set_item(batch, 1, buffer)
        set_item(batch, 2, o.record_count)
        set_item(batch, 3, o.base_timestamp)
        set_item(batch, 4, o.max_timestamp)
        self.batches.append(batch)
        o.start = NULL
        return 0


def encode_columns(
    keys, values not None, headers, timestamps, partitions, *, int64_t partition_rows, int64_t row_count,
    int32_t partition_count, Py_ssize_t batch_bytes_max, list spare not None,
):
    """Encode columns as batches without batch headers, in row order within each partition.

    `timestamps` are int64 milliseconds, or a number for all rows. `partitions` are int32, each for `partition_rows`
    rows. Neither has nulls. Buffers in `spare` are reused before new ones are allocated.
    """
    cdef _BytesColumn key_column = None if keys is None else _BytesColumn(keys)
    cdef _BytesColumn value_column = _BytesColumn(values)
    cdef _HeadersColumn header_column = None if headers is None else _HeadersColumn(headers)
    cdef _View timestamp_view = None if isinstance(timestamps, int) else _View(timestamps)
    cdef _View partition_view = _View(partitions)
    if (
        (timestamp_view is not None and timestamp_view.size < row_count * 8)
        or partition_rows < 1
        or (partition_view.size >> 2) * partition_rows < row_count
    ):
        raise ValueError(f"expected timestamps and partitions for {row_count} rows")
    cdef const int64_t *timestamp_of = NULL if timestamp_view is None else <const int64_t *>timestamp_view.data
    cdef int64_t timestamp = timestamps if timestamp_view is None else 0
    cdef const int32_t *partition_of = <const int32_t *>partition_view.data
    cdef _ColumnEncoder encoder = _ColumnEncoder(partition_count, batch_bytes_max, spare)
    cdef OpenPartition *o
    cdef OpenPartition *all_partitions = encoder.open_partitions
    cdef bint has_keys = key_column is not None, has_headers = header_column is not None
    cdef int64_t row, delta, run, run_end = 0, invalid_row = -1
    cdef int32_t partition = 0
    cdef Py_ssize_t body, total, header_size = 1
    cdef Piece key, value
    cdef uint8_t *p
    key.data = NULL
    key.size = -1
    value.data = NULL
    with nogil:
        for run in range((row_count + partition_rows - 1) // partition_rows):
            partition = partition_of[run]
            row = run * partition_rows
            run_end = min(row + partition_rows, row_count)
            if partition < 0 or partition >= partition_count:
                invalid_row = row
                break
            o = &all_partitions[partition]
            o.bytes_left += (run_end - row) * RECORD_OVERHEAD_BYTES_MAX + value_column.span(row, run_end)
            if has_keys:
                o.bytes_left += key_column.span(row, run_end)
            if has_headers:
                for row in range(row, run_end):
                    o.bytes_left += header_column.size(row)
    if invalid_row >= 0:
        raise ValueError(
            f"row {invalid_row}: expected a partition from 0 to {partition_count - 1}, got {partition}"
        )
    with nogil:
        run = run_end = 0
        for row in range(row_count):
            if row == run_end:
                partition = partition_of[run]
                run += 1
                run_end += partition_rows
            o = &all_partitions[partition]
            if timestamp_of is not NULL:
                timestamp = timestamp_of[row]
            if has_keys:
                key_column.at(row, &key)
            value_column.at(row, &value)
            if has_headers:
                header_size = header_column.size(row)
            if o.start is NULL:
                delta = 0
                body = 2 + hr_varint_size(0) + _piece_size(&key) + _piece_size(&value) + header_size
            else:
                delta = timestamp - o.base_timestamp
                body = 1 + hr_varint_size(delta) + hr_varint_size(o.record_count) + _piece_size(&key) + _piece_size(&value) + header_size
            total = body + hr_varint_size(body)
            if o.start is NULL or total > o.end - o.at:
                with gil:
                    if o.start is not NULL:
                        encoder.close(partition)
                    encoder.open(partition, total)
                # The first record of a batch has deltas of 0, so it is not larger than `total`.
                delta = 0
                o.base_timestamp = o.max_timestamp = timestamp
                body = 3 + _piece_size(&key) + _piece_size(&value) + header_size
            p = hr_put_varint(o.at, body)
            p = _put_record_head(p, delta, o.record_count)
            p = _put_piece(p, &key)
            p = _put_piece(p, &value)
            if has_headers:
                p = header_column.put(p, row)
            else:
                p[0] = 0
                p += 1
            o.record_count += 1
            o.bytes_left -= p - o.at  # stays an upper bound: no record is larger than its share of it
            o.at = p
            if timestamp > o.max_timestamp:
                o.max_timestamp = timestamp
    for partition in range(partition_count):
        if all_partitions[partition].start is not NULL:
            encoder.close(partition)
    return encoder.batches


cdef object _allocate = None


cdef object _allocator():
    """Return pyarrow's allocator. Imported on first use: a broker does not need it, and importing takes 0.25 s."""
    global _allocate
    if _allocate is None:
        from pyarrow import allocate_buffer
        _allocate = allocate_buffer
    return _allocate


cdef class _Growing:
    """An Arrow buffer that is written through a pointer: `reserve`, then write at `at` and advance it.

    Arrow's allocator reuses freed memory. malloc returns large blocks to the system, and allocating them again costs a
    page fault for every 4 KiB, which is more than the decoding itself.
    """

    cdef object buffer
    cdef uint8_t *start
    cdef uint8_t *at
    cdef Py_ssize_t room

    def __cinit__(self):
        self.buffer = _allocator()(0, resizable=True)
        self.resize(64)

    cdef int resize(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t used = self.at - self.start
        self.buffer.resize(size)
        self.start = <uint8_t *><uint64_t>self.buffer.address
        self.at = self.start + used
        self.room = size
        return 0

    cdef int reserve(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t used = self.at - self.start
        if used + size > self.room:
            self.resize(max(used + size, self.room + self.room // 2))
        return 0

    cdef object finish(self):
        self.buffer.resize(self.at - self.start)
        return self.buffer


cdef class _GrowingBytes:
    """A column of bytes under construction: after `reserve`, `add` cannot fail."""

    cdef _Growing validity, offsets, data
    cdef uint8_t *bits
    cdef int64_t rows, nulls, size

    def __cinit__(self):
        self.validity = _Growing()
        self.offsets = _Growing()
        self.data = _Growing()
        self.offsets.reserve(4)
        _put_native32(self.offsets, 0)

    cdef int reserve(self, int64_t rows, Py_ssize_t size) except -1:
        cdef Py_ssize_t more_bits = (self.rows + rows + 7) // 8 - (self.validity.at - self.validity.start)
        if self.size + size > COLUMN_BYTES_MAX:
            raise ValueError(f"a column would exceed {COLUMN_BYTES_MAX} bytes: finish it before adding more")
        self.offsets.reserve(rows * 4)
        self.data.reserve(size)
        if more_bits > 0:
            self.validity.reserve(more_bits)
            memset(self.validity.at, 0, more_bits)
            self.validity.at += more_bits
        self.bits = self.validity.start
        return 0

    cdef inline void add(self, Piece *piece) noexcept nogil:
        if piece.size < 0:
            self.nulls += 1
        else:
            self.bits[self.rows >> 3] |= <uint8_t>(1 << (self.rows & 7))
            memcpy(self.data.at, piece.data, piece.size)
            self.data.at += piece.size
            self.size += piece.size
        _put_native32(self.offsets, <int32_t>self.size)
        self.rows += 1

    cdef tuple finish(self):
        self.validity.at = self.validity.start + (self.rows + 7) // 8
        validity = self.validity.finish() if self.nulls else None
        return validity, self.offsets.finish(), self.data.finish()


cdef inline void _put_native32(_Growing target, int32_t value) noexcept nogil:
    (<int32_t *>target.at)[0] = value
    target.at += 4


cdef inline void _put_native64(_Growing target, int64_t value) noexcept nogil:
    (<int64_t *>target.at)[0] = value
    target.at += 8


cdef class ColumnDecoder:
    """A decoder that collects the records of many batches in Arrow's layout."""

    cdef _Growing offsets, timestamps, header_lists
    cdef _GrowingBytes keys, values, header_keys, header_values
    cdef int64_t rows
    cdef bint with_headers

    def __init__(self, bint with_headers, Py_ssize_t bytes_hint=0):
        self.with_headers = with_headers
        self.offsets = _Growing()
        self.timestamps = _Growing()
        self.keys = _GrowingBytes()
        self.values = _GrowingBytes()
        self.header_keys = _GrowingBytes()
        self.header_values = _GrowingBytes()
        self.header_lists = _Growing()
        self.header_lists.reserve(4)
        _put_native32(self.header_lists, 0)
        # Reserved at once: growing step by step would copy repeatedly, and untouched pages cost nothing.
        self.keys.data.reserve(bytes_hint)
        self.values.data.reserve(bytes_hint)

    @property
    def row_count(self):
        return self.rows

    def add(
        self, payload, int32_t record_count, *, int64_t base_offset, int64_t base_timestamp, int64_t append_time,
        int64_t first_offset, int64_t end_offset,
    ):
        """Add the records of a decompressed payload with first_offset <= offset < end_offset.

        After an error the decoder must not be used.
        """
        cdef _View view = _View(payload)
        cdef const uint8_t *at = view.data
        cdef const uint8_t *end = view.data + view.size
        cdef const char *expected = NULL
        cdef Parsed r
        cdef int32_t index
        cdef int64_t offset
        if record_count < 0 or record_count > view.size // RECORD_BYTES_MIN:
            raise MalformedError(f"expected at most {view.size // RECORD_BYTES_MIN} records, got {record_count}", offset=0)
        self.offsets.reserve(record_count * 8)
        self.timestamps.reserve(record_count * 8)
        self.keys.reserve(record_count, view.size)
        self.values.reserve(record_count, view.size)
        if self.with_headers:
            # A header has at least two bytes.
            self.header_lists.reserve(record_count * 4)
            self.header_keys.reserve(view.size // 2, view.size)
            self.header_values.reserve(view.size // 2, view.size)
        with nogil:
            for index in range(record_count):
                expected = _parse_record(&at, end, &r)
                if expected is not NULL:
                    break
                offset = base_offset + r.offset_delta
                if offset < first_offset or offset >= end_offset:
                    continue
                _put_native64(self.offsets, offset)
                _put_native64(
                    self.timestamps, append_time if append_time >= 0 else base_timestamp + r.timestamp_delta
                )
                self.keys.add(&r.key)
                self.values.add(&r.value)
                self.rows += 1
                if self.with_headers:
                    expected = self.add_headers(&r, &at)
                    if expected is not NULL:
                        break
        if expected is not NULL:
            raise _malformed(expected, at, view)
        if at != end:
            raise MalformedError(f"expected {record_count} records, {end - at} bytes are left", offset=at - view.data)

    cdef const char *add_headers(self, Parsed *r, const uint8_t **at) noexcept nogil:
        cdef int64_t count, index
        cdef Piece piece
        cdef const uint8_t *p = _parse_header_count(r.headers, r.end, &count)
        if p is NULL:
            at[0] = r.headers
            return b"a count of headers"
        for index in range(count):
            at[0] = p
            p = _parse_piece(p, r.end, &piece)
            if p is NULL or piece.size < 0:
                return b"the key of a header"
            if not hr_is_utf8(piece.data, piece.size):
                return b"the key of a header in UTF-8"
            self.header_keys.add(&piece)
            at[0] = p
            p = _parse_piece(p, r.end, &piece)
            if p is NULL:
                return b"the value of a header"
            self.header_values.add(&piece)
        at[0] = p
        if p != r.end:
            return b"the end of the record"
        _put_native32(self.header_lists, <int32_t>self.header_keys.rows)
        return NULL

    def finish(self):
        """Return offsets, timestamps, keys, values, and with headers their list offsets, keys and values.

        A column of bytes is (validity or None, int32 offsets, data). The decoder must not be used after this.
        """
        columns = self.offsets.finish(), self.timestamps.finish(), self.keys.finish(), self.values.finish()
        if not self.with_headers:
            return (*columns, None)
        return (*columns, (self.header_lists.finish(), self.header_keys.finish(), self.header_values.finish()))
