# Decoders and encoders by plans, for the compiled codec of each format, which includes this file: plans and columns as C
# structures around the loops of the format's `decode.h` and `encode.h`.
#
# decode.h declares `hr_decoder` (with the fields below), the code ERROR_SKIP, `hr_decode`, and what is called around it:
# `hr_start_batch`, `hr_start_row`, `hr_end_batch`. encode.h declares `hr_encode`. The GIL is released while rows are
# decoded or encoded; a decoder or an encoder has no state of a batch, so threads can share it.

from cpython.buffer cimport PyBuffer_FillInfo, PyBUF_SIMPLE, PyObject_GetBuffer, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from headrace.schema._plan.layout import ColumnBuffers, EncodedColumn, KernelError

cdef extern from "columns.h" nogil:
    int KIND_NULL, KIND_BOOLEAN, KIND_FIXED, KIND_BINARY, KIND_LIST, KIND_STRUCT
    int FATAL_MEMORY
    ctypedef struct hr_constant:
        const uint8_t *data
        int64_t size
    ctypedef struct hr_node:
        int32_t op, column, child_count
        int64_t size, multiplier, divisor
        int32_t *children
    ctypedef struct hr_column:
        int32_t kind, width, nullable, child_count
        int32_t *children
        int64_t length, null_count, capacity
        uint8_t *valid
        uint8_t *data
        int64_t data_size, data_capacity
        int32_t *offsets
    int hr_grow(hr_column *column, int64_t capacity)
    int hr_append_null(hr_column *columns, int32_t index)
    void hr_truncate(hr_column *columns, int32_t index, int64_t length)
    void hr_pack(uint8_t *bytes, int64_t length)

cdef extern from "inputs.h" nogil:
    ctypedef struct hr_input:
        int32_t kind, width, is_signed, child_count
        int32_t *children
        int64_t first
        const uint8_t *validity
        const uint8_t *data
        const int32_t *offsets
    ctypedef struct hr_encoder:
        const hr_node *nodes
        const hr_input *columns
        const hr_constant *constants
        uint8_t *out
        int64_t size, capacity
        int32_t failed_node
    int hr_put_bytes(hr_encoder *e, const uint8_t *data, int64_t size)

cdef extern from "decode.h" nogil:
    int ERROR_SKIP
    ctypedef struct hr_decoder:
        const hr_node *nodes
        hr_column *columns
        const hr_constant *constants
        const uint8_t *at
        const uint8_t *end
        int32_t failed_node
    int hr_start_batch(hr_decoder *d)
    void hr_start_row(hr_decoder *d)
    void hr_end_batch(hr_decoder *d)
    int hr_decode(hr_decoder *d, int32_t index)

cdef extern from "encode.h" nogil:
    int hr_encode(hr_encoder *e, int32_t index, int64_t row)

ctypedef struct Failure:
    int64_t row, position
    int32_t code, node


cdef class _Memory:
    """Memory from malloc, as a buffer."""

    cdef void *data
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 1, flags)


cdef _Memory _take(void *data, Py_ssize_t size):
    """Hand over memory, without what is not used."""
    cdef _Memory memory = _Memory.__new__(_Memory)
    cdef void *smaller = realloc(data, size if size > 0 else 1)
    memory.data = data if smaller == NULL else smaller
    memory.size = size
    return memory


cdef object _take_any(void *data, Py_ssize_t size):
    """`_take` of memory that may never have been allocated."""
    return b"" if data == NULL else _take(data, size)


cdef class _View:
    """The bytes of a buffer, as long as it lives; NULL for None."""

    cdef Py_buffer buffer
    cdef bint held
    cdef const uint8_t *data

    def __cinit__(self, source):
        if source is not None:
            PyObject_GetBuffer(source, &self.buffer, PyBUF_SIMPLE)
            self.held = True
            self.data = <const uint8_t *>self.buffer.buf

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef class _Failures:
    """The failed rows of a batch."""

    cdef Failure *items
    cdef int64_t count, capacity

    def __dealloc__(self):
        free(self.items)

    cdef int add(self, int64_t row, int32_t code, int64_t position, int32_t node) noexcept nogil:
        cdef Failure *larger
        if self.count == self.capacity:
            larger = <Failure *>malloc((self.capacity * 2 + 16) * sizeof(Failure))
            if larger == NULL:
                return FATAL_MEMORY
            if self.count:
                memcpy(larger, self.items, self.count * sizeof(Failure))
            free(self.items)
            self.items = larger
            self.capacity = self.capacity * 2 + 16
        self.items[self.count].row = row
        self.items[self.count].code = code
        self.items[self.count].position = position
        self.items[self.count].node = node
        self.count += 1
        return 0

    cdef list errors(self):
        cdef int64_t i
        return [
            KernelError(self.items[i].row, self.items[i].code, self.items[i].position, self.items[i].node)
            for i in range(self.count)
        ]


cdef int32_t *_numbers(children) except NULL:
    cdef int32_t *numbers = <int32_t *>malloc((len(children) + 1) * sizeof(int32_t))
    cdef Py_ssize_t i
    if numbers == NULL:
        raise MemoryError()
    for i in range(len(children)):
        numbers[i] = children[i]
    return numbers


cdef class _Plan:
    """Nodes and constants as C structures."""

    cdef hr_node *nodes
    cdef int32_t node_count
    cdef hr_constant *constants
    cdef list kept

    def __dealloc__(self):
        cdef int32_t i
        if self.nodes != NULL:
            for i in range(self.node_count):
                free(self.nodes[i].children)
        free(self.nodes)
        free(self.constants)

    cdef load(self, nodes, constants):
        cdef int32_t i
        cdef bytes constant
        self.kept = list(constants)
        self.nodes = <hr_node *>calloc(len(nodes) + 1, sizeof(hr_node))
        self.constants = <hr_constant *>calloc(len(constants) + 1, sizeof(hr_constant))
        if self.nodes == NULL or self.constants == NULL:
            raise MemoryError()
        self.node_count = len(nodes)
        for i in range(self.node_count):
            node = nodes[i]
            self.nodes[i].op = node.op
            self.nodes[i].column = node.column
            self.nodes[i].size = node.size
            if len(node) == 6:
                self.nodes[i].multiplier = node.multiplier
                self.nodes[i].divisor = node.divisor
            self.nodes[i].child_count = len(node.children)
            self.nodes[i].children = _numbers(node.children)
        for i in range(len(self.kept)):
            constant = self.kept[i]
            self.constants[i].data = <const uint8_t *>PyBytes_AS_STRING(constant)
            self.constants[i].size = PyBytes_GET_SIZE(constant)


cdef class _Columns:
    """The columns of one batch while it is decoded."""

    cdef hr_column *columns
    cdef int32_t count

    def __cinit__(self, columns):
        cdef int32_t i
        self.columns = <hr_column *>calloc(len(columns) + 1, sizeof(hr_column))
        if self.columns == NULL:
            raise MemoryError()
        self.count = len(columns)
        for i in range(self.count):
            self.columns[i].kind = columns[i].kind
            self.columns[i].width = columns[i].width
            self.columns[i].nullable = columns[i].nullable
            self.columns[i].child_count = len(columns[i].children)
            self.columns[i].children = _numbers(columns[i].children)

    def __dealloc__(self):
        cdef int32_t i
        if self.columns == NULL:
            return
        for i in range(self.count):
            free(self.columns[i].children)
            free(self.columns[i].valid)
            free(self.columns[i].data)
            free(self.columns[i].offsets)
        free(self.columns)

    cdef list finish(self):
        """Hand over the memory of all columns."""
        cdef int32_t i
        cdef hr_column *column
        buffers = []
        for i in range(self.count):
            column = &self.columns[i]
            validity = offsets = data = None
            null_count = column.null_count if column.nullable else 0
            if null_count and column.kind != KIND_NULL:
                hr_pack(column.valid, column.length)
                validity = _take(column.valid, (column.length + 7) // 8)
                column.valid = NULL
            if column.kind == KIND_BOOLEAN:
                hr_pack(column.data, column.length)
                data = _take(column.data, (column.length + 7) // 8)
            elif column.kind == KIND_FIXED:
                data = _take(column.data, column.length * column.width)
            elif column.kind == KIND_BINARY:
                data = _take_any(column.data, column.data_size)
            column.data = NULL
            if column.kind == KIND_BINARY or column.kind == KIND_LIST:
                offsets = _take(column.offsets, (column.length + 1) * 4)
                column.offsets = NULL
            buffers.append(ColumnBuffers(column.length, null_count, validity, offsets, data))
        return buffers


cdef class PlanDecoder:
    """Decodes values by a plan. Column 0 is the root, and nullable; the last node is the root."""

    cdef _Plan plan
    cdef list columns
    cdef list row_columns

    def __init__(self, nodes, columns, constants):
        self.plan = _Plan()
        self.plan.load(nodes, constants)
        self.columns = list(columns)
        # Columns with one value for each row: memory for them is known beforehand.
        self.row_columns = [0]
        for index in self.row_columns:
            if columns[index].kind == KIND_STRUCT:
                self.row_columns.extend(columns[index].children)

    def decode(self, values, row_count, skip):
        """Decode the values of a binary column, from byte `skip` of each on.

        Return the buffers of all columns, and an error for each row that could not be decoded, which is null.
        """
        cdef _View validity = _View(values.validity), offsets = _View(values.offsets), data = _View(values.data)
        cdef _Columns columns = _Columns(self.columns)
        cdef _Failures failures = _Failures()
        cdef hr_decoder d
        cdef int64_t first = values.first, rows = row_count, row, begin, end, skipped = skip, position
        cdef bint large = values.large
        cdef int32_t root = self.plan.node_count - 1
        cdef int code = 0
        memset(&d, 0, sizeof(d))
        d.nodes = self.plan.nodes
        d.columns = columns.columns
        d.constants = self.plan.constants
        for index in range(columns.count):
            if hr_grow(&columns.columns[index], 0):
                raise MemoryError()
        for index in self.row_columns:
            if hr_grow(&columns.columns[index], rows):
                raise MemoryError()
        if hr_start_batch(&d):
            raise MemoryError()
        with nogil:
            for row in range(first, first + rows):
                if validity.data != NULL and not (validity.data[row >> 3] >> (row & 7)) & 1:
                    code = hr_append_null(d.columns, 0)
                    if code:
                        break
                    continue
                if large:
                    begin = (<const int64_t *>offsets.data)[row]
                    end = (<const int64_t *>offsets.data)[row + 1]
                else:
                    begin = (<const int32_t *>offsets.data)[row]
                    end = (<const int32_t *>offsets.data)[row + 1]
                d.failed_node = -1
                hr_start_row(&d)
                if end - begin < skipped:
                    code = ERROR_SKIP
                    d.failed_node = root
                    position = end - begin
                else:
                    d.at = data.data + begin + skipped
                    d.end = data.data + end
                    code = hr_decode(&d, root)
                    if not code:
                        continue
                    if code < 0:
                        break
                    position = d.at - (data.data + begin)
                    hr_truncate(d.columns, 0, row - first)
                code = failures.add(row - first, code, position, d.failed_node)
                if not code:
                    code = hr_append_null(d.columns, 0)
                if code:
                    break
            hr_end_batch(&d)
        if code < 0:
            _give_up(code)
        return columns.finish(), failures.errors()


cdef _give_up(int code):
    if code == FATAL_MEMORY:
        raise MemoryError()
    raise OverflowError("a column of the batch has more than 2 GiB or 2^31 items; pass fewer rows at a time")


cdef class _Inputs:
    """The columns to encode of one batch."""

    cdef hr_input *columns
    cdef int32_t count
    cdef list views

    def __cinit__(self, columns):
        cdef int32_t i
        cdef _View view
        self.views = []
        self.columns = <hr_input *>calloc(len(columns) + 1, sizeof(hr_input))
        if self.columns == NULL:
            raise MemoryError()
        self.count = len(columns)
        for i in range(self.count):
            column = columns[i]
            self.columns[i].kind = column.kind
            self.columns[i].width = column.width
            self.columns[i].is_signed = column.signed
            self.columns[i].first = column.first
            self.columns[i].child_count = len(column.children)
            self.columns[i].children = _numbers(column.children)
            view = self.view(column.validity)
            self.columns[i].validity = view.data
            view = self.view(column.offsets)
            self.columns[i].offsets = <const int32_t *>view.data
            view = self.view(column.data)
            self.columns[i].data = view.data

    cdef _View view(self, source):
        cdef _View view = _View(source)
        self.views.append(view)
        return view

    def __dealloc__(self):
        cdef int32_t i
        if self.columns == NULL:
            return
        for i in range(self.count):
            free(self.columns[i].children)
        free(self.columns)


cdef class PlanEncoder:
    """Encodes columns by a plan. Column 0 is the root; the last node is the root."""

    cdef _Plan plan

    def __init__(self, nodes, constants):
        self.plan = _Plan()
        self.plan.load(nodes, constants)

    def encode(self, columns, row_count, bytes prefix not None):
        """Encode rows, with `prefix` before each value. A row that is null stays null.

        Return the buffers of a binary column, and an error for each row that could not be encoded, which is null.
        """
        cdef _Inputs inputs = _Inputs(columns)
        cdef _Failures failures = _Failures()
        cdef hr_encoder e
        cdef const hr_input *top = &inputs.columns[0]
        cdef const uint8_t *prefix_data = <const uint8_t *>PyBytes_AS_STRING(prefix)
        cdef int64_t rows = row_count, row, start, null_count = 0, prefix_size = PyBytes_GET_SIZE(prefix), at
        cdef int32_t root = self.plan.node_count - 1
        cdef int32_t *offsets
        cdef uint8_t *valid
        cdef int code = 0
        memset(&e, 0, sizeof(e))
        offsets = <int32_t *>malloc((rows + 1) * 4)
        valid = <uint8_t *>malloc(rows + 1)
        if offsets == NULL or valid == NULL:
            free(offsets)
            free(valid)
            raise MemoryError()
        e.nodes = self.plan.nodes
        e.columns = inputs.columns
        e.constants = self.plan.constants
        with nogil:
            for row in range(rows):
                offsets[row] = <int32_t>e.size
                at = top.first + row
                valid[row] = top.validity == NULL or (top.validity[at >> 3] >> (at & 7)) & 1
                if not valid[row]:
                    null_count += 1
                    continue
                start = e.size
                e.failed_node = -1
                code = hr_put_bytes(&e, prefix_data, prefix_size)
                if not code:
                    code = hr_encode(&e, root, row)
                if code > 0:
                    e.size = start
                    valid[row] = 0
                    null_count += 1
                    code = failures.add(row, code, -1, e.failed_node)
                if code:
                    break
            offsets[rows] = <int32_t>e.size
        if null_count and not code:
            hr_pack(valid, rows)
        data, ends, bits = _take_any(e.out, e.size), _take(offsets, (rows + 1) * 4), _take(valid, (rows + 7) // 8)
        if code:
            _give_up(code)
        return EncodedColumn(null_count, bits if null_count else None, ends, data), failures.errors()
