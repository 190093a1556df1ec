# cython: language_level=3, embedsignature=True
"""`sendmsg` and `recv` for non-blocking sockets, without releasing the GIL.

Python releases it for every system call. With a busy application thread, getting it back takes up to 5 ms, for a call
of 50 µs that never blocks.

Large responses are the exception. They arrive in pieces of the socket's buffer, for each of which the thread would wait
in `epoll`, without the GIL: to receive 4 MiB would take it 16 times. So the GIL is released once for several pieces.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t
from libc.string cimport memset

cdef extern from * nogil:
    """
    #include <sys/socket.h>
    #include <sys/uio.h>
    #ifndef MSG_NOSIGNAL  /* not on macOS; Python ignores SIGPIPE */
    #define MSG_NOSIGNAL 0
    #endif
    #include <errno.h>
    #include <poll.h>
    #include <time.h>

    static int64_t hr_now_us(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    }

    /* Receive until the buffer is full, nothing comes for a millisecond, or the time is over. */
    static ssize_t hr_recv_pieces(int fd, char *buffer, size_t size, int64_t max_us) {
        int64_t deadline_us = hr_now_us() + max_us;
        size_t received = 0;
        while (received < size && (received == 0 || hr_now_us() < deadline_us)) {
            ssize_t count = recv(fd, buffer + received, size - received, MSG_DONTWAIT);
            if (count > 0) {
                received += (size_t)count;
                continue;
            }
            if (count < 0 && errno == EINTR)
                continue;
            if (count == 0 || received == 0)
                return count == 0 ? (ssize_t)received : -1;
            struct pollfd readable = {fd, POLLIN, 0};
            if ((errno != EAGAIN && errno != EWOULDBLOCK) || poll(&readable, 1, 1) <= 0)
                break;  /* an error of the connection shows in the next call */
        }
        return (ssize_t)received;
    }
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
    ssize_t hr_recv_pieces(int fd, char *buffer, size_t size, int64_t max_us)

cdef enum:
    PIECES_BYTES_MIN = 128 * 1024  # more than a chunk of `FrameReader`, less than what is worth the wait for the GIL
    PIECES_US_MAX = 5000  # other connections and commands wait meanwhile
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
    """Read available bytes into `room`; returns their number, 0 at the end of the stream.

    For a large room, once something is available, more of it is awaited for some milliseconds.
    """
    cdef Py_buffer view
    cdef ssize_t received
    PyObject_GetBuffer(room, &view, PyBUF_WRITABLE)
    try:
        if view.len >= PIECES_BYTES_MIN:
            with nogil:
                received = hr_recv_pieces(fd, <char *>view.buf, view.len, PIECES_US_MAX)
            if received < 0:
                PyErr_SetFromErrno(OSError)
            return received
        received = c_recv(fd, view.buf, view.len, MSG_DONTWAIT)
        while received < 0 and errno == EINTR:
            received = c_recv(fd, view.buf, view.len, MSG_DONTWAIT)
        if received < 0:
            PyErr_SetFromErrno(OSError)
    finally:
        PyBuffer_Release(&view)
    return received
