"""PromptSocket behaves like Python's socket: the same tests with both."""

from __future__ import annotations

import random
import select
import socket
import sys
import threading
import time

import pytest

from headrace.client.connection import GATHER_MAX
from headrace.client.prompt_socket import PromptSocket

SECONDS_MAX = 20


@pytest.fixture(params=["ours", "Python's"])
def pair(request):
    """Return both ends of a connection: a PromptSocket, and a blocking socket."""
    kind = PromptSocket if request.param == "ours" else socket.socket
    with socket.create_server(("127.0.0.1", 0)) as server, kind(socket.AF_INET, socket.SOCK_STREAM) as ours:
        ours.connect(server.getsockname())
        ours.setblocking(False)
        theirs, _ = server.accept()
        theirs.settimeout(SECONDS_MAX)
        with theirs:
            yield ours, theirs


def received(sock, count):
    data = b""
    while len(data) < count:
        data += sock.recv(count - len(data))
    return data


def write_until(error, write):
    """Write until an error is raised; returns the number of bytes written before."""
    sent, deadline = 0, time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            sent += write()
        except error:
            return sent
    raise AssertionError(f"no {error.__name__}")


def test_buffers_of_all_kinds_are_gathered(pair):
    ours, theirs = pair
    assert ours.send(b"one ") == 4
    assert ours.sendmsg([b"two ", bytearray(b"three "), memoryview(b"__four ")[2:], b""]) == 15
    assert received(theirs, 19) == b"one two three four "


def test_the_number_of_written_bytes_is_returned(pair):
    ours, theirs = pair
    sent = write_until(BlockingIOError, lambda: ours.sendmsg([bytes(100_000), bytes(100_000)]))
    assert sent % 100_000, "the last call was cut short, or else this shows nothing"
    assert received(theirs, sent) == bytes(sent)


def test_more_buffers_than_one_call_takes_are_no_error(pair):
    ours, theirs = pair
    count = ours.sendmsg([b"x"] * GATHER_MAX)
    assert received(theirs, count) == b"x" * count


def test_available_bytes_are_received_without_blocking(pair):
    ours, theirs = pair
    room = bytearray(10)
    with pytest.raises(BlockingIOError):
        ours.recv_into(room)
    theirs.sendall(b"hello")
    select.select([ours], [], [], SECONDS_MAX)
    assert ours.recv_into(memoryview(room)[2:]) == 5
    assert room[2:7] == b"hello"
    theirs.close()
    select.select([ours], [], [], SECONDS_MAX)
    assert ours.recv_into(room) == 0


def test_a_large_room_is_filled_by_several_pieces_and_ends_with_the_stream(pair):
    ours, theirs = pair
    data, room = random.Random(1).randbytes(3_000_000), memoryview(bytearray(4_000_000))
    with pytest.raises(BlockingIOError):
        ours.recv_into(room)
    sender = threading.Thread(target=lambda: (theirs.sendall(data), theirs.close()), daemon=True)
    sender.start()
    filled = 0
    while select.select([ours], [], [], SECONDS_MAX)[0] and (count := ours.recv_into(room[filled:])):
        filled += count
    sender.join(SECONDS_MAX)
    assert room[:filled] == data


@pytest.mark.skipif(PromptSocket is socket.socket, reason="not compiled, or HEADRACE_KERNEL=python")
def test_a_large_room_is_received_without_the_gil(pair):
    ours, theirs = pair
    if not isinstance(ours, PromptSocket):
        pytest.skip("Python's socket does not wait for more")
    rounds, room = 200, bytearray(1_000_000)
    entered = [threading.Event() for _ in range(rounds)]

    def send_more():
        for event in entered:
            event.wait(SECONDS_MAX)
            theirs.sendall(b"y")

    sender = threading.Thread(target=send_more, daemon=True)
    sender.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SECONDS_MAX)  # the sender runs only while this thread has released the GIL
    both = 0
    try:
        for event in entered:
            theirs.sendall(b"x")
            select.select([ours], [], [], SECONDS_MAX)
            event.set()
            count = ours.recv_into(room)
            both += count == 2
            while count < 2:
                select.select([ours], [], [], SECONDS_MAX)
                count += ours.recv_into(room)
    finally:
        sys.setswitchinterval(interval)
    sender.join(SECONDS_MAX)
    assert both > 0


def test_a_closed_peer_is_an_error_not_a_signal(pair):
    ours, theirs = pair
    theirs.close()
    write_until(ConnectionError, lambda: ours.sendmsg([b"x"]))


def test_values_that_are_not_buffers_are_rejected(pair):
    ours, _ = pair
    with pytest.raises(TypeError):
        ours.sendmsg([b"good", "bad"])
    with pytest.raises((TypeError, BufferError)):
        ours.recv_into(b"read only")


@pytest.mark.skipif(PromptSocket is socket.socket, reason="not compiled, or HEADRACE_KERNEL=python")
def test_sending_does_not_release_the_gil_to_a_busy_thread(pair):
    ours, theirs = pair
    if not isinstance(ours, PromptSocket):
        pytest.skip("Python's socket releases the GIL")
    stop = threading.Event()

    def be_busy():
        while not stop.is_set():
            pass

    reader = threading.Thread(target=received, args=(theirs, 200), daemon=True)
    busy = threading.Thread(target=be_busy, daemon=True)
    reader.start()
    busy.start()
    started = time.perf_counter()
    try:
        for _ in range(200):
            ours.send(b"x")
    finally:
        took = time.perf_counter() - started
        stop.set()
    busy.join(SECONDS_MAX)
    reader.join(SECONDS_MAX)
    assert took < 0.5, "to get the GIL back 200 times takes a second"
