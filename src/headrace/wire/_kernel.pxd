# Declarations that other compiled modules share with the kernel.

from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject *cls, Py_ssize_t size)

cdef extern from "_bytes.h" nogil:
    int32_t hr_murmur2(const uint8_t *data, int32_t length)


cdef struct Piece:
    const uint8_t *data
    Py_ssize_t size  # -1: null


cdef class OpenBatch:
    cdef readonly object buffer
    cdef uint8_t *data
    cdef Py_ssize_t used, room
    cdef int64_t first_timestamp, highest_timestamp
    cdef int32_t records
    cdef readonly bint closed
    cdef public list callbacks  # future, callback, future, callback: flat, without tuples for the garbage collector

    cdef int32_t add(self, int64_t timestamp, Piece *key, Piece *value, headers) except -2


cdef inline object named_tuple(object cls, Py_ssize_t size):
    """Return a new instance of a tuple class; the caller must set all items."""
    return PyType_GenericAlloc(<PyTypeObject *>cls, size)


cdef inline void set_item(object target, Py_ssize_t index, object value):
    """Set an item of a new tuple."""
    Py_INCREF(value)
    PyTuple_SET_ITEM(target, index, value)
