"""The blocking channel of the 0.8 producer, on loopback sockets."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from headrace.client.addresses import Endpoint
from headrace.errors import ConnectionFailedError, MalformedError, TimedOutError
from headrace.legacy.blocking_channel import BlockingChannel
from tests.support.peers.real_kafka import free_ports
from tests.support.scripted import HungUpError, ScriptedServer
from tests.support.waiting import eventually

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
def test_frames_are_sent_and_received_with_a_size_prefix():
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
def test_large_frames_are_received_in_parts():
    large = struct.pack(">i", 1 << 20) + b"x" * (1 << 20)

    def respond(peer):
        receive_exactly(peer, len(large))
        peer.send(large)

    with ScriptedServer(respond) as server:
        channel = channel_to(server)
        channel.send([large])
        assert bytes(channel.receive()) == large[4:]
        channel.disconnect()


@pytest.mark.behaviour("L07")
def test_socket_buffer_and_options_are_set():
    with ScriptedServer() as server:
        channel = channel_to(server)
        connected = channel._socket
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (100 * 1024, 200 * 1024)  # Linux doubles it
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        channel.disconnect()


@pytest.mark.behaviour("L07")
def test_a_response_timeout_closes_the_connection():
    with ScriptedServer(lambda peer: peer.silence()) as server:
        channel = channel_to(server, timeout_ms=50)
        channel.send([FRAME])
        with pytest.raises(TimedOutError, match=r"timed out after 50 ms \(request.timeout.ms\) waiting for a response"):
            channel.receive()
        assert not channel.is_connected
        with pytest.raises(ConnectionFailedError, match="is not connected"):
            channel.receive()


@pytest.mark.behaviour("L07")
def test_a_response_byte_by_byte_gets_the_same_timeout():
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
def test_a_closed_connection_is_noticed_before_an_acks_0_request():
    def hang_up(peer):
        raise HungUpError

    with ScriptedServer(hang_up) as server:
        channel = channel_to(server)

        def is_noticed():
            try:
                channel.check_is_open()
            except ConnectionFailedError as error:
                return str(error)

        assert "sending a request failed" in eventually("an error", is_noticed)
        assert not channel.is_connected


def test_a_connection_closed_without_a_response_is_an_error():
    def listen(peer):
        peer._receive()

    with ScriptedServer(listen) as server:
        channel = channel_to(server)
        channel.send([FRAME])
        with pytest.raises(ConnectionFailedError, match="waiting for a response failed: "):
            channel.receive()


def test_more_than_one_response_is_an_error():
    def talk(peer):
        peer._receive()
        peer.send(FRAME + FRAME)

    with ScriptedServer(talk) as server:
        channel = channel_to(server)
        channel.send([FRAME])
        with pytest.raises(MalformedError, match="expected one response"):
            channel.receive()
        assert not channel.is_connected


@pytest.mark.parametrize("host", ["127.0.0.1", "x" * 70 + ".invalid"])
def test_an_unreachable_broker_is_named(host):
    (port,) = free_ports(1)
    channel = BlockingChannel(Endpoint(host, port), 1000, 1024)
    with pytest.raises(ConnectionFailedError, match=f"broker {host}:{port}: connecting failed"):
        channel.connect()
