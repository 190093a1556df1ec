"""Splitting a stream into frames."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import MalformedError
from headrace.wire.framing import (
    CHUNK_BYTES,
    FIRST_BUFFER_BYTES_MAX,
    FIRST_BUFFER_RATIO_MAX,
    OWN_BYTES_MIN,
    FrameReader,
)
from headrace.wire.primitives import Buffer

pytestmark = pytest.mark.both_kernels

FRAME_BYTES_MAX = 100 * 1024 * 1024


def framed(bodies):
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def read_in_place(stream, sizes):
    """Receive into the reader's room, a few bytes at a time, as a socket does."""
    frames: list[Buffer] = []
    reader, pos = FrameReader(FRAME_BYTES_MAX), 0
    while pos < len(stream):
        room = reader.room()
        count = min(len(room), len(stream) - pos, sizes())
        room[:count] = stream[pos : pos + count]
        reader.received(count, frames)
        pos += count
    return [bytes(frame) for frame in frames]


bodies = st.lists(
    st.one_of(st.binary(max_size=40), st.integers(CHUNK_BYTES - 8, CHUNK_BYTES * 3).map(bytes)), max_size=6
)


@given(bodies, st.integers(1, 100_000), st.integers(0, 2**32))
def test_frames_survive_any_split_of_the_stream(expected, piece_max, seed):
    chance = random.Random(seed)
    stream = framed(expected)
    if len(stream) < 1000 or piece_max > 500:
        assert read_in_place(stream, lambda: chance.randint(1, piece_max)) == expected
    frames: list[Buffer] = []
    reader = FrameReader(FRAME_BYTES_MAX)
    reader.feed(stream, frames)
    assert [bytes(frame) for frame in frames] == expected


def test_a_large_frame_is_received_in_place_and_outlives_the_reader():
    body = random.Random(1).randbytes(FIRST_BUFFER_BYTES_MAX * 2)
    frames: list[Buffer] = []
    reader = FrameReader(FRAME_BYTES_MAX)
    reader.feed(framed([body, b"next"]), frames)
    del reader
    assert isinstance(frames[0], memoryview)
    assert (frames[0] == body, frames[1]) == (True, b"next")


@pytest.mark.parametrize("size", [-1, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_frames_before_an_invalid_size_are_returned(size):
    frames: list[Buffer] = []
    reader = FrameReader(FRAME_BYTES_MAX)
    with pytest.raises(MalformedError, match=f"got a size of {size}"):
        reader.feed(framed([b"good"]) + struct.pack(">i", size), frames)
    assert frames == [b"good"]


FRAMES = [b"", b"a", b"some more", bytes(300)]
STREAM = framed(FRAMES)


def feed(reader: FrameReader, data: Buffer) -> list[bytes]:
    frames: list[Buffer] = []
    reader.feed(data, frames)
    return [bytes(frame) for frame in frames]


def test_one_feed_returns_many_frames():
    reader = FrameReader(FRAME_BYTES_MAX)
    assert feed(reader, STREAM) == FRAMES
    assert reader.pending_bytes == 0


def test_frames_may_be_split_anywhere():
    for cut in range(len(STREAM) + 1):
        reader = FrameReader(FRAME_BYTES_MAX)
        assert feed(reader, STREAM[:cut]) + feed(reader, memoryview(STREAM)[cut:]) == FRAMES
        assert reader.pending_bytes == 0


def test_frames_may_arrive_byte_by_byte():
    reader = FrameReader(FRAME_BYTES_MAX)
    assert [frame for byte in STREAM for frame in feed(reader, bytes([byte]))] == FRAMES


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 90_000)), max_size=40), st.integers(0, 2**32))
def test_readers_that_share_a_chunk_do_not_mix_their_frames(turns, seed):
    chance = random.Random(seed)
    chunk = memoryview(bytearray(CHUNK_BYTES))
    expected = [[chance.randbytes(chance.randint(0, 50_000)) for _ in range(4)] for _ in range(4)]
    streams = [framed(bodies) for bodies in expected]
    readers = [FrameReader(FRAME_BYTES_MAX, chunk) for _ in range(4)]
    got: list[list[Buffer]] = [[] for _ in range(4)]

    def receive(which: int, count: int) -> None:
        room = readers[which].room()
        part = streams[which][: min(count, len(room))]
        room[: len(part)] = part
        readers[which].received(len(part), got[which])
        streams[which] = streams[which][len(part) :]

    for which, count in turns:
        receive(which, count)
    for which in range(4):
        while streams[which]:
            receive(which, CHUNK_BYTES)
    assert [[bytes(frame) for frame in frames] for frames in got] == expected


@pytest.mark.parametrize("size", [-1, -(2**31), 11, 2**31 - 1])
def test_a_negative_or_too_large_size_is_rejected_at_once(size):
    reader = FrameReader(10)
    assert feed(reader, (10).to_bytes(4, "big") + bytes(10)) == [bytes(10)]
    with pytest.raises(MalformedError, match=f"expected a frame of 0 to 10 bytes, got a size of {size}"):
        feed(reader, size.to_bytes(4, "big", signed=True))


@pytest.mark.parametrize("arrived", [4, 1000, OWN_BYTES_MIN, CHUNK_BYTES])
def test_the_memory_of_a_frame_grows_with_the_received_bytes(allocated_bytes, arrived):
    reader = FrameReader(FRAME_BYTES_MAX)
    cost, _ = allocated_bytes(feed, reader, FRAME_BYTES_MAX.to_bytes(4, "big") + bytes(arrived))
    assert cost < 10_000 + arrived * (FIRST_BUFFER_RATIO_MAX + 2)


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"HTTP/1.1 400 Bad Request\r\n"])
def test_a_peer_that_uses_http_is_recognized(start):
    with pytest.raises(MalformedError, match="the peer uses HTTP"):
        feed(FrameReader(FRAME_BYTES_MAX), start)


def test_a_peer_that_uses_tls_is_recognized():
    with pytest.raises(MalformedError, match="the peer uses TLS"):
        feed(FrameReader(FRAME_BYTES_MAX), b"\x16\x03\x01\x02\x00\x01")
