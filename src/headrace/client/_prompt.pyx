# cython: language_level=3, embedsignature=True
"""`sendmsg` and `recv` for non-blocking sockets, without releasing the GIL.

Python releases it for every system call. With a busy application thread, getting it back takes up to 5 ms, for a call
of 50 µs that never blocks.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from libc.string cimport memset

cdef extern from * nogil:
    """
    #include <sys/socket.h>
    #include <sys/uio.h>
    #ifndef MSG_NOSIGNAL  /* not on macOS; Python ignores SIGPIPE */
    #define MSG_NOSIGNAL 0
    #endif
    """
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    cdef struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    int MSG_DONTWAIT, MSG_NOSIGNAL
    ssize_t c_sendmsg "sendmsg"(int fd, const msghdr *message, int flags)
    ssize_t c_recv "recv"(int fd, void *buffer, size_t size, int flags)

cdef enum:
    GATHER_MAX = 512  # buffers in one call, as in connection.py; the system allows 1024


def sendmsg(int fd, parts):
    """Write what the kernel accepts of the first GATHER_MAX buffers; returns the number of bytes."""
    cdef Py_buffer views[GATHER_MAX]
    cdef iovec gather[GATHER_MAX]
    cdef msghdr message
    cdef int count = 0, index
    cdef ssize_t sent
    try:
        for part in parts:
            if count == GATHER_MAX:
                break
            PyObject_GetBuffer(part, &views[count], PyBUF_SIMPLE)
            gather[count].iov_base = views[count].buf
            gather[count].iov_len = views[count].len
            count += 1
        memset(&message, 0, sizeof(message))
        message.msg_iov = gather
        message.msg_iovlen = count
        sent = c_sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
        while sent < 0 and errno == EINTR:
            sent = c_sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent < 0:
            PyErr_SetFromErrno(OSError)
    finally:
        for index in range(count):
            PyBuffer_Release(&views[index])
    return sent


def recv_into(int fd, room):
    """Read available bytes into `room`; returns their number, 0 at the end of the stream."""
    cdef Py_buffer view
    cdef ssize_t received
    PyObject_GetBuffer(room, &view, PyBUF_WRITABLE)
    try:
        received = c_recv(fd, view.buf, view.len, MSG_DONTWAIT)
        while received < 0 and errno == EINTR:
            received = c_recv(fd, view.buf, view.len, MSG_DONTWAIT)
        if received < 0:
            PyErr_SetFromErrno(OSError)
    finally:
        PyBuffer_Release(&view)
    return received
