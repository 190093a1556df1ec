"""The blocking channel of the 0.8 producer, on real sockets of the loopback."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from headrace.client.addresses import Endpoint
from headrace.errors import ConnectionFailedError, MalformedError, TimedOutError
from headrace.legacy.blocking_channel import BlockingChannel
from peers.real_kafka import free_ports
from scripted import HungUpError, ScriptedServer
from waiting import eventually

FRAME = b"\x00\x00\x00\x05hello"


def channel_to(server, timeout_ms=5000.0):
    channel = BlockingChannel(Endpoint("127.0.0.1", server.port), timeout_ms, 100 * 1024)
    channel.connect()
    return channel


def receive_exactly(peer, count):
    data = b""
    while len(data) < count:
        data += peer._receive()
    return data


@pytest.mark.behaviour("L07")
def test_frames_go_both_ways_with_their_size_in_front():
    received = []

    def echo(peer):
        for _ in range(2):
            received.append(receive_exactly(peer, len(FRAME)))
            peer.send(FRAME)

    with ScriptedServer(echo) as server:
        channel = channel_to(server)
        for _ in range(2):
            channel.send([FRAME[:4], memoryview(FRAME)[4:]])
            assert bytes(channel.receive()) == b"hello"
        channel.disconnect()
    assert received == [FRAME, FRAME]


@pytest.mark.behaviour("L07")
def test_large_frames_come_in_pieces():
    large = struct.pack(">i", 1 << 20) + b"x" * (1 << 20)

    def answer(peer):
        receive_exactly(peer, len(large))
        peer.send(large)

    with ScriptedServer(answer) as server:
        channel = channel_to(server)
        channel.send([large])
        assert bytes(channel.receive()) == large[4:]
        channel.disconnect()


@pytest.mark.behaviour("L07")
def test_the_socket_has_the_buffer_and_the_options_it_should():
    with ScriptedServer() as server:
        channel = channel_to(server)
        connected = channel._socket
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (100 * 1024, 200 * 1024)  # Linux doubles it
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        channel.disconnect()


@pytest.mark.behaviour("L07")
def test_an_answer_that_does_not_come_in_time_ends_the_connection():
    with ScriptedServer(lambda peer: peer.silence()) as server:
        channel = channel_to(server, timeout_ms=50)
        channel.send([FRAME])
        with pytest.raises(TimedOutError, match=r"did not answer in 50 ms \(request.timeout.ms\)"):
            channel.receive()
        assert not channel.is_connected
        with pytest.raises(ConnectionFailedError, match="is not connected"):
            channel.receive()


@pytest.mark.behaviour("L07")
def test_an_answer_in_drips_gets_no_more_time_than_a_whole_one():
    def drip(peer):
        peer._receive()
        while True:
            peer.send(b"\x00\x00\x00\x7f" if not peer._waiting else b"x")
            peer._waiting.append(b"")
            time.sleep(0.01)

    with ScriptedServer(drip) as server:
        channel = channel_to(server, timeout_ms=200)
        channel.send([FRAME])
        started = time.monotonic()
        with pytest.raises(TimedOutError):
            channel.receive()
        assert time.monotonic() - started < 1.2
        channel.disconnect()


@pytest.mark.behaviour("L07")
def test_a_peer_that_hangs_up_is_noticed_before_a_request_without_an_answer():
    def hang_up(peer):
        raise HungUpError

    with ScriptedServer(hang_up) as server:
        channel = channel_to(server)

        def is_noticed():
            try:
                channel.check_is_open()
            except ConnectionFailedError as error:
                return str(error)

        assert "could not be sent a request" in eventually("an error", is_noticed)
        assert not channel.is_connected


def test_a_peer_that_hangs_up_instead_of_answering_is_told():
    def listen(peer):
        peer._receive()

    with ScriptedServer(listen) as server:
        channel = channel_to(server)
        channel.send([FRAME])
        with pytest.raises(ConnectionFailedError, match="could not answer: "):
            channel.receive()


def test_more_than_one_answer_is_an_error():
    def talk(peer):
        peer._receive()
        peer.send(FRAME + FRAME)

    with ScriptedServer(talk) as server:
        channel = channel_to(server)
        channel.send([FRAME])
        with pytest.raises(MalformedError, match="one answer"):
            channel.receive()
        assert not channel.is_connected


@pytest.mark.parametrize("host", ["127.0.0.1", "x" * 70 + ".invalid"])
def test_a_broker_that_cannot_be_reached_is_named(host):
    (port,) = free_ports(1)
    channel = BlockingChannel(Endpoint(host, port), 1000, 1024)
    with pytest.raises(ConnectionFailedError, match=f"broker {host}:{port} could not be reached"):
        channel.connect()
