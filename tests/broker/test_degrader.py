"""The degrader, between a client and an echo server."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest

from headrace.broker.degrader import Degrader
from headrace.errors import ClosedError, ConfigError
from tests.support.waiting import eventually

SECONDS_MAX = 10
SILENCE_SECONDS = 0.2


class Echo:
    """A server that sends back what it gets."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                threading.Thread(target=self._echo, args=(self._listener.accept()[0],), daemon=True).start()

    @staticmethod
    def _echo(connection):
        with suppress(OSError), connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo():
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def network(echo):
    with Degrader(echo.address) as degrader:
        yield degrader


def dial(network):
    host, port = network.address.split(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS_MAX)


def exchange(connection, data):
    """Send data, and return the time until all of it is received back."""
    started = time.monotonic()
    connection.sendall(data)
    received = b""
    while len(received) < len(data):
        received += connection.recv(65536) or pytest.fail("the connection ended")
    assert received == data
    return time.monotonic() - started


def is_broken(connection):
    try:
        connection.sendall(b"x")
        return connection.recv(10) == b""
    except (ConnectionResetError, BrokenPipeError):
        return True


def is_refused(network):
    try:
        with dial(network) as connection:
            return is_broken(connection)
    except ConnectionResetError:
        return True  # while it was still dialling


def test_a_perfect_network_forwards_everything(network):
    with dial(network) as connection:
        exchange(connection, bytes(range(256)) * 4000)
        assert network.connections == 1
    eventually("the end of the connection", lambda: network.connections == 0, SECONDS_MAX)


def test_closing_one_side_closes_the_other(network):
    with dial(network) as connection:
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while data := connection.recv(100):
            received += data
        assert received == b"last words"


def test_latency_applies_in_each_direction_and_to_open_connections(network):
    with dial(network) as connection:
        exchange(connection, b"warm")
        network.set(latency_ms=60)
        assert exchange(connection, b"slow") >= 0.12
        network.set(latency_ms=0)
        assert exchange(connection, b"fast") < 0.12


def test_latency_does_not_add_up_over_a_stream(network):
    network.set(latency_ms=50)
    with dial(network) as connection:
        started = time.monotonic()
        for _ in range(20):
            connection.sendall(b"x" * 100)
            time.sleep(0.002)
        received = 0
        while received < 2000:
            received += len(connection.recv(65536))
        assert 0.1 <= time.monotonic() - started < 1  # one after the other would be two seconds


def test_jitter_keeps_the_order(network):
    network.set(jitter_ms=20)
    with dial(network) as connection:
        for number in range(30):
            connection.sendall(b"%03d" % number)
            time.sleep(0.001)
        received = b""
        while len(received) < 90:
            received += connection.recv(65536)
        assert received == b"".join(b"%03d" % number for number in range(30))


def test_bandwidth_is_bounded(network):
    network.set(bandwidth_bytes_per_s=200_000)
    with dial(network) as connection:
        assert 0.2 <= exchange(connection, bytes(50_000)) < 5


def test_a_cut_resets_connections_and_rejects_new_ones_until_healed(network):
    with dial(network) as connection:
        exchange(connection, b"before")
        network.cut()
        assert is_broken(connection)
    assert is_refused(network)
    network.heal()
    with dial(network) as connection:
        exchange(connection, b"after")


def test_a_cut_after_some_bytes_forwards_exactly_these(network):
    network.set(cut_after_bytes=1500)
    with dial(network) as connection:
        connection.sendall(bytes(1000))  # there, and half of it back
        received = 0
        with suppress(ConnectionResetError):
            while data := connection.recv(65536):
                received += len(data)
        assert received <= 500
    network.heal()
    with dial(network) as connection:
        exchange(connection, bytes(10_000))


def test_half_open_stops_traffic_without_closing_connections(network):
    with dial(network) as connection:
        exchange(connection, b"before")
        network.half_open()
        connection.sendall(b"held")
        connection.settimeout(SILENCE_SECONDS)
        with pytest.raises(TimeoutError):
            connection.recv(10)
        connection.settimeout(SECONDS_MAX)
        network.heal()
        assert connection.recv(10) == b"held"


def test_an_unreachable_target_closes_the_connection(network):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    network.connect_to(f"127.0.0.1:{port}")
    assert is_refused(network)


def test_invalid_conditions_are_rejected(network):
    with pytest.raises(ConfigError, match="invalid latency_ms -1: expected 0 to"):
        network.set(latency_ms=-1)
    with pytest.raises(ConfigError, match="invalid bandwidth_bytes_per_s 0"):
        network.set(bandwidth_bytes_per_s=0)


def test_a_closed_degrader_releases_its_port_and_thread(echo):
    degrader = Degrader(echo.address).start()
    connection = dial(degrader)
    exchange(connection, b"open")
    degrader.close()
    degrader.close()
    connection.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-degrader"]
    with socket.create_server(("127.0.0.1", degrader.port)):
        pass
    with pytest.raises(ClosedError):
        degrader.heal()
