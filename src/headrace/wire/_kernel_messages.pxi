# Encoding and decoding of messages by their plan: each struct of a plan is compiled to an array of operations.

cdef enum:
    BOOLEAN = 0
    INT8 = 1
    INT16 = 2
    UINT16 = 3
    INT32 = 4
    UINT32 = 5
    INT64 = 6
    FLOAT64 = 7
    UUID = 8
    STRING = 9
    BYTES = 10
    RECORDS = 11
    STRUCT = 12
    ARRAY = 13

cdef enum:
    STRING_BYTES_MAX = 0x7FFF

cdef extern from "Python.h":
    object PyNumber_Index(object o)

cdef int[9] FIXED_BYTES = [1, 1, 2, 2, 4, 4, 8, 8, 16]
cdef int64_t[7] LOWEST = [0, -0x80, -0x8000, 0, -0x80000000, 0, INT64_MIN]
cdef int64_t[7] HIGHEST = [1, 0x7F, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF]

cdef struct Op:
    int kind
    int index
    bint nullable
    int tag
    int element_kind
    Py_ssize_t item_bytes_min  # of an array
    PyObject *name  # borrowed, like the next two, from the codec that owns the operation
    PyObject *default
    PyObject *element

cdef struct Cursor:
    const uint8_t *start
    const uint8_t *at
    const uint8_t *end
    PyObject *memory  # a memoryview of the buffer, for messages with records


cdef class _Writer:
    """A growing buffer, split where a record batch is inserted without copying."""

    cdef uint8_t *data
    cdef Py_ssize_t used, room
    cdef list parts

    def __cinit__(self):
        self.room = 512
        self.data = <uint8_t *>PyMem_Malloc(self.room)
        if self.data is NULL:
            raise MemoryError()
        self.parts = []

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef inline uint8_t *reserve(self, Py_ssize_t size) except NULL:
        if self.used + size > self.room:
            self.grow(size)
        return self.data + self.used

    cdef int grow(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t room = max(2 * self.room, self.used + size)
        cdef uint8_t *data = <uint8_t *>PyMem_Realloc(self.data, room)
        if data is NULL:
            raise MemoryError()
        self.data = data
        self.room = room
        return 0

    cdef int uvarint(self, uint64_t value) except -1:
        cdef uint8_t *p = self.reserve(10)
        self.used = hr_put_uvarint(p, value) - self.data
        return 0

    cdef int raw(self, const void *data, Py_ssize_t size) except -1:
        memcpy(self.reserve(size), data, size)
        self.used += size
        return 0

    cdef int split(self) except -1:
        self.parts.append(PyBytes_FromStringAndSize(<char *>self.data, self.used))
        self.used = 0
        return 0

    cdef list finish(self):
        if self.used or not self.parts:
            self.split()
        return self.parts


cdef class _StructCodec:
    """The encoder and decoder of a struct in one version."""

    cdef Op *ops
    cdef Op *tagged
    cdef int *defaulted  # indexes of fields that are absent or tagged, and of `tags`: set to defaults first
    cdef int op_count, tagged_count, defaulted_count, size, version
    cdef bint flexible
    cdef Py_ssize_t bytes_min
    cdef object cls
    cdef tuple defaults, absent
    cdef list keep
    cdef str name

    def __cinit__(self, plan):
        self.cls = plan.cls
        self.name = plan.cls.__name__
        self.version = plan.version
        self.flexible = plan.flexible
        self.defaults = plan.defaults
        self.absent = plan.absent
        self.size = len(plan.defaults)
        self.keep = [plan]
        self.op_count = len(plan.fields)
        self.tagged_count = len(plan.tagged)
        self.ops = self.compile(plan.fields)
        self.tagged = self.compile(plan.tagged)
        on_wire = {field.position for field in plan.fields}
        defaulted = [index for index in range(self.size) if index not in on_wire]
        self.defaulted_count = len(defaulted)
        self.defaulted = <int *>PyMem_Malloc(sizeof(int) * (len(defaulted) + 1))
        if self.defaulted is NULL:
            raise MemoryError()
        for i, index in enumerate(defaulted):
            self.defaulted[i] = index
        self.bytes_min = 0
        for i in range(self.op_count):
            self.bytes_min += FIXED_BYTES[self.ops[i].kind] if self.ops[i].kind < STRING else 1
        self.bytes_min = max(self.bytes_min, 1)

    def __dealloc__(self):
        PyMem_Free(self.ops)
        PyMem_Free(self.tagged)
        PyMem_Free(self.defaulted)

    cdef Op *compile(self, tuple fields) except NULL:
        cdef Op *ops = <Op *>PyMem_Malloc(sizeof(Op) * (len(fields) + 1))
        cdef _StructCodec element
        if ops is NULL:
            raise MemoryError()
        for i, field in enumerate(fields):
            ops[i].kind = field.kind
            ops[i].index = field.position
            ops[i].nullable = field.nullable
            ops[i].tag = field.tag
            ops[i].element_kind = field.element_kind
            ops[i].name = <PyObject *>field.name
            ops[i].default = <PyObject *>field.default
            ops[i].element = NULL
            ops[i].item_bytes_min = 1
            if field.element is not None:
                element = _StructCodec(field.element)
                self.keep.append(element)
                ops[i].element = <PyObject *>element
                ops[i].item_bytes_min = element.bytes_min
            elif 0 <= field.element_kind < STRING:
                ops[i].item_bytes_min = FIXED_BYTES[field.element_kind]
        return ops

    cdef str path(self, Op *op):
        return f"{self.name}.{<object>op.name}"

    # -- decoding ------------------------------------------------------------------------------

    cdef object decode(self, Cursor *c):
        cdef object result = named_tuple(self.cls, self.size)
        cdef int i
        for i in range(self.defaulted_count):
            set_item(result, self.defaulted[i], self.defaults[self.defaulted[i]])
        for i in range(self.op_count):
            set_item(result, self.ops[i].index, self.decode_field(&self.ops[i], c))
        if self.flexible:
            # Fast path without tags.
            if c.at < c.end and c.at[0] == 0:
                c.at += 1
            else:
                self.decode_tags(result, c)
        return result

    cdef object decode_field(self, Op *op, Cursor *c):
        cdef int64_t length
        cdef const uint8_t *start
        if op.kind < STRING:
            return self.decode_fixed(op, op.kind, c)
        if op.kind == STRUCT:
            if op.nullable:
                self.need(op, c, 1)
                start = c.at
                c.at += 1
                if start[0] > 0x7F:
                    return None
            return (<_StructCodec>op.element).decode(c)
        start = c.at
        length = self.decode_length(op, op.kind != STRING, c)
        if length < 0:
            if op.nullable:
                return None
            raise MalformedError(
                f"{self.path(op)} is null, which version {self.version} does not allow", offset=start - c.start
            )
        if op.kind == ARRAY:
            return self.decode_array(op, length, start, c)
        return self.decode_sized(op, op.kind, length, c)

    cdef object decode_array(self, Op *op, int64_t length, const uint8_t *start, Cursor *c):
        cdef _StructCodec element
        cdef Py_ssize_t i
        cdef const uint8_t *item
        cdef int64_t size
        if length > (c.end - c.at) / op.item_bytes_min:
            raise MalformedError(
                f"{self.path(op)}: expected {length} items of {op.item_bytes_min} bytes or more, {c.end - c.at} left",
                offset=start - c.start,
            )
        result = PyTuple_New(length)
        if op.element_kind == STRUCT:
            element = <_StructCodec>op.element
            for i in range(length):
                set_item(result, i, element.decode(c))
        elif op.element_kind < STRING:
            for i in range(length):
                set_item(result, i, self.decode_fixed(op, op.element_kind, c))
        else:
            for i in range(length):
                item = c.at
                size = self.decode_length(op, op.element_kind != STRING, c)
                if size < 0:
                    raise MalformedError(f"{self.path(op)}: an item is null", offset=item - c.start)
                set_item(result, i, self.decode_sized(op, op.element_kind, size, c))
        return result

    cdef inline int need(self, Op *op, Cursor *c, Py_ssize_t size) except -1:
        if size > c.end - c.at:
            raise MalformedError(
                f"{self.path(op)}: expected {size} bytes, {c.end - c.at} left", offset=c.at - c.start
            )
        return 0

    cdef inline object decode_fixed(self, Op *op, int kind, Cursor *c):
        cdef const uint8_t *p = c.at
        cdef uint64_t bits
        cdef double number
        self.need(op, c, FIXED_BYTES[kind])
        c.at += FIXED_BYTES[kind]
        if kind == INT32:
            return PyLong_FromLong(<int32_t>hr_get32(p))
        if kind == INT16:
            return PyLong_FromLong(<short>hr_get16(p))
        if kind == INT64:
            return PyLong_FromLongLong(<int64_t>hr_get64(p))
        if kind == INT8:
            return PyLong_FromLong(<signed char>p[0])
        if kind == BOOLEAN:
            return p[0] != 0
        if kind == UUID:
            return PyBytes_FromStringAndSize(<const char *>p, 16)
        if kind == UINT16:
            return PyLong_FromLong(hr_get16(p))
        if kind == UINT32:
            return PyLong_FromLongLong(hr_get32(p))
        bits = hr_get64(p)
        memcpy(&number, &bits, 8)
        return number

    cdef inline int64_t decode_length(self, Op *op, bint wide, Cursor *c) except? -2:
        cdef uint64_t raw
        cdef int64_t length
        cdef const uint8_t *start = c.at
        if self.flexible:
            length = <int64_t>_uvarint(c) - 1
        elif wide:
            self.need(op, c, 4)
            length = <int32_t>hr_get32(c.at)
            c.at += 4
        else:
            self.need(op, c, 2)
            length = <short>hr_get16(c.at)
            c.at += 2
        if length < -1:
            raise MalformedError(f"{self.path(op)}: expected a length, got {length}", offset=start - c.start)
        return length

    cdef object decode_sized(self, Op *op, int kind, int64_t length, Cursor *c):
        cdef const uint8_t *p = c.at
        self.need(op, c, length)
        c.at += length
        if kind == STRING:
            try:
                return PyUnicode_DecodeUTF8(<const char *>p, length, NULL)
            except UnicodeDecodeError as error:
                raise MalformedError(
                    f"{self.path(op)}: expected UTF-8: {error.reason}", offset=p - c.start + error.start
                ) from None
        if kind == BYTES:
            return PyBytes_FromStringAndSize(<const char *>p, length)
        return (<object>c.memory)[p - c.start : p - c.start + length]

    cdef int decode_tags(self, object result, Cursor *c) except -1:
        cdef uint64_t count = _uvarint(c), tag, size
        cdef int64_t last = -1
        cdef const uint8_t *start
        cdef Op *op
        cdef dict unknown = {}
        while count:
            count -= 1
            start = c.at
            tag = _uvarint(c)
            if <int64_t>tag <= last:
                raise MalformedError(f"{self.name}: expected a tag above {last}, got {tag}", offset=start - c.start)
            last = <int64_t>tag
            start = c.at
            size = _uvarint(c)
            if size > <uint64_t>(c.end - c.at):
                raise MalformedError(
                    f"{self.name}: expected {size} bytes of tag {tag}, {c.end - c.at} left", offset=start - c.start
                )
            op = self.find_tag(tag)
            start = c.at
            if op is NULL:
                unknown[tag] = PyBytes_FromStringAndSize(<const char *>start, size)
                c.at += size
                continue
            _replace(result, op.index, self.decode_field(op, c))
            if c.at != start + size:
                raise MalformedError(
                    f"{self.path(op)}: expected {size} bytes, read {c.at - start}", offset=start - c.start
                )
        if unknown:
            _replace(result, self.size - 1, unknown)
        return 0

    cdef Op *find_tag(self, uint64_t tag) noexcept:
        cdef int i
        for i in range(self.tagged_count):
            if <uint64_t>self.tagged[i].tag == tag:
                return &self.tagged[i]
        return NULL

    # -- encoding ------------------------------------------------------------------------------

    cdef int encode(self, object value, _Writer w) except -1:
        cdef int i
        cdef tuple fields
        if type(value) is not self.cls:
            raise TypeError(f"expected {self.name}, got {type(value).__name__}")
        fields = <tuple>value
        for absent in self.absent:
            if fields[absent.position] != absent.default:
                raise UnsupportedVersionError(
                    f"{self.name}.{absent.name} is {fields[absent.position]!r}, but version {self.version} does "
                    f"not have the field, only versions {absent.versions}"
                )
        for i in range(self.op_count):
            self.encode_field(&self.ops[i], fields[self.ops[i].index], w)
        if self.flexible:
            self.encode_tags(fields, w)
        return 0

    cdef int encode_field(self, Op *op, object value, _Writer w) except -1:
        if value is None and op.kind >= STRING and not op.nullable:
            raise UnsupportedVersionError(f"{self.path(op)} is None, which version {self.version} does not allow")
        if op.kind == ARRAY:
            if value is None:
                self.encode_length(-1, True, w)
                return 0
            self.encode_length(len(value), True, w)
            for item in <tuple?>value:
                self.encode_value(op, op.element_kind, item, w)
        elif op.kind == STRUCT and op.nullable:
            w.reserve(1)[0] = 0xFF if value is None else 1
            w.used += 1
            if value is not None:
                self.encode_value(op, STRUCT, value, w)
        elif value is None and op.kind >= STRING:
            self.encode_length(-1, op.kind != STRING, w)
        else:
            self.encode_value(op, op.kind, value, w)
        return 0

    cdef int encode_value(self, Op *op, int kind, object value, _Writer w) except -1:
        cdef Py_ssize_t size
        cdef const char *text
        cdef _View view
        if kind < FLOAT64:
            return self.encode_integer(op, kind, value, w)
        if kind == STRUCT:
            return (<_StructCodec>op.element).encode(value, w)
        if kind == RECORDS:
            return self.encode_records(op, value, w)
        if kind == STRING:
            text = self.utf8(op, value, &size)
            self.encode_length(size, False, w)
            return w.raw(text, size)
        if kind == BYTES:
            try:
                view = _View(value)
            except TypeError:  # it may be a secret: name the type, not the value
                raise ValueError(f"{self.path(op)} is of type {type(value).__name__}: expected bytes") from None
            self.encode_length(view.size, True, w)
            return w.raw(view.data, view.size)
        return self.encode_float_or_uuid(op, kind, value, w)

    cdef const char *utf8(self, Op *op, object value, Py_ssize_t *size) except NULL:
        cdef const char *text
        if not isinstance(value, str):
            raise ValueError(f"{self.path(op)} is {value!r}: expected a string")
        try:
            text = PyUnicode_AsUTF8AndSize(value, size)
        except UnicodeEncodeError as error:
            raise ValueError(f"{self.path(op)} is {value!r}: {error.reason}") from None
        if size[0] > STRING_BYTES_MAX:
            raise ValueError(f"{self.path(op)} has {size[0]} bytes; the maximum is {STRING_BYTES_MAX}")
        return text

    cdef int encode_integer(self, Op *op, int kind, object value, _Writer w) except -1:
        cdef int64_t number
        cdef uint8_t *p = w.reserve(8)
        try:
            number = PyNumber_Index(value)  # a plain conversion would truncate 1.5 to 1
        except (TypeError, OverflowError) as error:
            raise ValueError(f"{self.path(op)} is {value!r}: {error}") from None
        if not LOWEST[kind] <= number <= HIGHEST[kind]:
            raise ValueError(
                f"{self.path(op)} is {value!r}: expected {LOWEST[kind]} to {HIGHEST[kind]}"
            )
        if kind == INT32 or kind == UINT32:
            hr_put32(p, <uint32_t>number)
        elif kind == INT64:
            hr_put64(p, <uint64_t>number)
        elif kind == INT16 or kind == UINT16:
            hr_put16(p, <uint16_t>number)
        else:
            p[0] = <uint8_t>number
        w.used += FIXED_BYTES[kind]
        return 0

    cdef int encode_float_or_uuid(self, Op *op, int kind, object value, _Writer w) except -1:
        cdef double number
        cdef uint64_t bits
        if kind == UUID:
            if type(value) is not bytes or len(value) != 16:
                raise ValueError(f"{self.path(op)} is {value!r}: expected 16 bytes")
            return w.raw(PyBytes_AS_STRING(<bytes>value), 16)
        try:
            number = value
        except (TypeError, OverflowError) as error:
            raise ValueError(f"{self.path(op)} is {value!r}: {error}") from None
        memcpy(&bits, &number, 8)
        hr_put64(w.reserve(8), bits)
        w.used += 8
        return 0

    cdef int encode_length(self, Py_ssize_t length, bint wide, _Writer w) except -1:
        if self.flexible:
            return w.uvarint(length + 1)
        if wide:
            hr_put32(w.reserve(4), <uint32_t>length)
            w.used += 4
        else:
            hr_put16(w.reserve(2), <uint16_t>length)
            w.used += 2
        return 0

    cdef int encode_records(self, Op *op, object value, _Writer w) except -1:
        cdef Py_ssize_t size = 0
        buffers = (value,) if isinstance(value, (bytes, bytearray, memoryview)) else value
        if not isinstance(buffers, (list, tuple)):
            raise ValueError(f"{self.path(op)} is of type {type(value).__name__}: expected buffers")
        for buffer in buffers:
            if not isinstance(buffer, (bytes, bytearray, memoryview)) or memoryview(buffer).nbytes != len(buffer):
                raise ValueError(f"{self.path(op)} has a buffer of type {type(buffer).__name__}: expected bytes")
            size += len(buffer)
        self.encode_length(size, True, w)
        if size:
            w.split()
            w.parts.extend(buffers)
        return 0

    cdef int encode_tags(self, tuple fields, _Writer w) except -1:
        cdef int i
        cdef _Writer inner
        unknown = fields[self.size - 1]
        cdef dict tagged = None
        for i in range(self.tagged_count):
            value = fields[self.tagged[i].index]
            if value is <object>self.tagged[i].default or value == <object>self.tagged[i].default:
                continue
            inner = _Writer()
            self.encode_field(&self.tagged[i], value, inner)
            if tagged is None:
                tagged = {}
            tagged[self.tagged[i].tag] = b"".join(inner.finish())
        if unknown:
            tagged = {**unknown, **(tagged or {})}
        if not tagged:
            return w.uvarint(0)
        w.uvarint(len(tagged))
        for tag in sorted(tagged):
            data = <bytes?>tagged[tag]
            w.uvarint(tag)
            w.uvarint(PyBytes_GET_SIZE(data))
            w.raw(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        return 0


cdef inline int _replace(object target, Py_ssize_t index, object value) except -1:
    """Replace an item that was set before with `set_item`."""
    cdef PyObject *old = <PyObject *>(<tuple>target)[index]
    set_item(target, index, value)
    Py_DECREF(<object>old)
    return 0


cdef inline uint64_t _uvarint(Cursor *c) except? 0xFFFFFFFFFFFFFFFF:
    cdef uint64_t value
    cdef const uint8_t *after = hr_get_uvarint(c.at, c.end, 32, &value)
    if after is NULL:
        raise MalformedError(
            f"expected a varint of at most 5 bytes, {c.end - c.at} bytes are left", offset=c.at - c.start
        )
    c.at = after
    return value


cdef class MessageCodec:
    """The encoder and decoder of a message in one version."""

    cdef readonly bint flexible
    cdef _StructCodec root
    cdef bint holds_records

    def __init__(self, plan):
        self.flexible = plan.flexible
        self.root = _StructCodec(plan)
        self.holds_records = _holds_records(plan)

    def encode(self, message):
        """Return a list of buffers: record batches are not copied, the rest is new bytes."""
        cdef _Writer w = _Writer()
        self.root.encode(message, w)
        return w.finish()

    def encode_frame(self, message, bytes head):
        """Encode with a size prefix and `head` before the message."""
        cdef _Writer w = _Writer()
        cdef Py_ssize_t size = 0
        w.used = 4
        w.raw(PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
        self.root.encode(message, w)
        parts = w.finish()
        for part in parts:
            size += len(part)
        # The first part is new and not shared yet, so it may be changed.
        hr_put32(<uint8_t *>PyBytes_AS_STRING(<bytes>parts[0]), <uint32_t>(size - 4))
        return parts

    def decode(self, data, Py_ssize_t pos):
        """Decode the message at `pos`; bytes after it are ignored."""
        cdef Cursor c
        return self.run(data, pos, &c)

    def decode_whole(self, data):
        """Decode the message that fills `data`."""
        cdef Cursor c
        message = self.run(data, 0, &c)
        if c.at != c.end:
            raise MalformedError(
                f"expected {self.root.name} to end here, {c.end - c.at} bytes are left", offset=c.at - c.start
            )
        return message

    cdef object run(self, object data, Py_ssize_t pos, Cursor *c):
        cdef _View view = _View(data)
        if pos > view.size:
            raise MalformedError(f"expected {self.root.name}, the buffer has {view.size} bytes", offset=pos)
        c.start = view.data
        c.at = view.data + pos
        c.end = view.data + view.size
        memory = memoryview(data) if self.holds_records else None
        c.memory = <PyObject *>memory
        return self.root.decode(c)


def _holds_records(plan):
    return any(
        field.kind == RECORDS or (field.element is not None and _holds_records(field.element))
        for field in plan.fields
    )
