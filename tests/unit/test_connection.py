"""Choosing versions, and partial writes."""

from __future__ import annotations

import errno
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import connection as module
from headrace.client.addresses import Address, Endpoint
from headrace.client.connection import BrokerVersions, Connection, ConnectionSettings, Request
from headrace.errors import ConnectionFailedError, UnsupportedVersionError
from headrace.wire.api.metadata import MetadataRequest


@pytest.mark.parametrize(
    ("ours", "theirs", "chosen"),
    [((0, 9), (3, 7), 7), ((0, 5), (3, 7), 5), ((7, 9), (0, 7), 7), ((8, 9), (0, 7), None), ((0, 2), (3, 7), None)],
)
def test_the_highest_common_version_is_chosen(ours, theirs, chosen):
    versions = BrokerVersions({3: theirs})
    if chosen is None:
        with pytest.raises(UnsupportedVersionError, match=f"the broker supports {theirs[0]} to {theirs[1]}"):
            versions.choose(3, ours)
    else:
        assert versions.choose(3, ours) == chosen


class Sink:
    """A socket that accepts a limited number of bytes per call and records the objects it gets."""

    def __init__(self, takes):
        self.takes = list(takes)
        self.data = b""
        self.seen = []

    def send(self, part):
        return self.sendmsg([part])

    def sendmsg(self, parts):
        if not self.takes:
            raise BlockingIOError
        self.seen += parts
        taken = b"".join(parts)[: self.takes.pop(0)]
        self.data += taken
        return len(taken)

    def close(self):
        pass


class Unconnected(Connection):
    def _open(self):
        return socket.socket()


def connection_to(sink):
    made = Unconnected(1, Endpoint("b", 1), Address(socket.AF_INET, ("127.0.0.1", 1)), ConnectionSettings("c"), 0.0)
    made.socket.close()
    made.socket = sink
    return made


@pytest.fixture
def connection():
    return connection_to(Sink([]))


@given(st.lists(st.integers(1, 60), max_size=40), st.lists(st.binary(max_size=30), min_size=1, max_size=12))
@pytest.mark.behaviour("P42")
def test_partial_writes_resume_where_they_stopped(takes, parts):
    sink = Sink(takes)
    made = connection_to(sink)
    made._queue(list(parts))
    made.flush()
    while made.wants_write:
        sink.takes = [7]
        made.flush()
    assert sink.data == b"".join(parts)


@pytest.mark.behaviour("P42")
def test_record_bytes_are_handed_to_the_socket_as_they_are(connection):
    connection.socket = sink = Sink([1 << 20])
    records = memoryview(bytearray(1000))
    connection._queue([b"head", records, b"tail"])
    connection.flush()
    assert any(part is records for part in sink.seen)


def test_a_broken_pipe_is_a_failed_connection(connection):
    class Broken(Sink):
        def sendmsg(self, parts):
            raise OSError(errno.EPIPE, "Broken pipe")

    connection.socket = Broken([])
    connection._queue([b"x"])
    with pytest.raises(ConnectionFailedError, match=r"failed while writing: .*Broken pipe"):
        connection.flush()


def test_correlation_ids_stay_positive(connection):
    connection._correlation_id = module.CORRELATION_ID_MAX
    assert [connection._next_id(), connection._next_id()] == [0, 1]


def test_a_request_that_cannot_be_built_leaves_nothing_behind(connection):
    connection.versions = BrokerVersions({3: (0, 9)})

    def build(version):
        raise UnsupportedVersionError("no")

    with pytest.raises(UnsupportedVersionError):
        connection.send(Request(MetadataRequest.api_key, build, print, (0, 9), 1000), 0.0)
    assert not connection.in_flight
    assert not connection._out
