# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, embedsignature=True
"""The performance-critical functions of `wire`, compiled. `_reference` is the definition; the same tests run on both.

    _kernel_messages.pxi      messages by their plan
    _kernel_records.pxi       record by record encoding and decoding of batches
    _kernel_batches.pxi       consecutive batches, as in a log segment
    _kernel_produce.pxi       produce requests with one batch
    _kernel_columns.pxi       batches from and to Arrow columns
    _kernel_message_sets.pxi  messages of magic 0 and 1
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject, PyTypeObject
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from headrace.errors import CorruptBatchError, MalformedError, UnsupportedVersionError
from headrace.wire.layout import BatchHeader, ConsumerRecord, EncodedBatch, LegacyMessage, Record, SingleBatch

cdef extern from "_crc32c.h" nogil:
    void hr_crc_init()
    uint32_t hr_crc32c(uint32_t crc, const uint8_t *data, size_t size)
    uint32_t hr_crc32(const uint8_t *data, size_t size)

cdef extern from "_bytes.h" nogil:
    void hr_put16(uint8_t *p, uint16_t v)
    void hr_put32(uint8_t *p, uint32_t v)
    void hr_put64(uint8_t *p, uint64_t v)
    uint16_t hr_get16(const uint8_t *p)
    uint32_t hr_get32(const uint8_t *p)
    uint64_t hr_get64(const uint8_t *p)
    int hr_uvarint_size(uint64_t v)
    int hr_varint_size(int64_t v)
    uint8_t *hr_put_uvarint(uint8_t *p, uint64_t v)
    uint8_t *hr_put_varint(uint8_t *p, int64_t v)
    const uint8_t *hr_get_uvarint(const uint8_t *p, const uint8_t *end, int bits, uint64_t *out)
    const uint8_t *hr_get_varint(const uint8_t *p, const uint8_t *end, int bits, int64_t *out)
    bint hr_is_utf8(const uint8_t *p, int64_t size)

cdef extern from "_row_hash.h" nogil:
    const uint64_t HR_HASH_START
    uint64_t hr_hash_cell(uint64_t hash, const uint8_t *data, int64_t size)

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char *s, Py_ssize_t size, const char *errors)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    object PyLong_FromLong(long v)
    object PyLong_FromLongLong(long long v)
    void PyObject_GC_UnTrack(PyObject *value)

cdef enum:
    HEADER_BYTES = 61
    GIL_KEPT_BYTES = 1048576  # releasing and acquiring the GIL costs more than a checksum of this size

hr_crc_init()


cdef class _View:
    """A read-only view of a buffer, released with the object."""

    cdef Py_buffer buffer
    cdef bint held
    cdef const uint8_t *data
    cdef Py_ssize_t size

    def __cinit__(self, obj):
        PyObject_GetBuffer(obj, &self.buffer, PyBUF_SIMPLE)
        self.held = True
        self.data = <const uint8_t *>self.buffer.buf
        self.size = self.buffer.len

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


def crc32c(data, uint32_t value=0):
    """Return the CRC32C of `data`, continued from `value`."""
    cdef _View view = _View(data)
    if view.size < GIL_KEPT_BYTES:
        return hr_crc32c(value, view.data, view.size)
    with nogil:
        value = hr_crc32c(value, view.data, view.size)
    return value


def murmur2(data):
    """Return Kafka's hash of a key, as a signed 32-bit integer."""
    cdef _View view = _View(data)
    return hr_murmur2(view.data, <int32_t>view.size)


include "_kernel_messages.pxi"
include "_kernel_records.pxi"
include "_kernel_batches.pxi"
include "_kernel_produce.pxi"
include "_kernel_columns.pxi"
include "_kernel_message_sets.pxi"
