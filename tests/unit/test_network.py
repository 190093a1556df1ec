"""The selector loop without a peer: back-off, wake-up, choice of the node."""

from __future__ import annotations

import random
import socket
import threading

import pytest

from headrace.client import network
from headrace.client.addresses import Address, Endpoint
from headrace.client.connection import ConnectionSettings
from headrace.client.network import NetworkClient, NetworkSettings
from headrace.config.backoff import JITTER, exponential_backoff
from headrace.config.clock import SYSTEM_CLOCK
from tests.support.waiting import eventually


@pytest.fixture
def client():
    made = NetworkClient(ConnectionSettings("test"), NetworkSettings(), SYSTEM_CLOCK)
    yield made
    made.close()


@pytest.mark.parametrize(("failures", "base"), [(1, 50), (2, 100), (3, 200), (5, 800), (6, 1000), (60, 1000)])
@pytest.mark.behaviour("P39")
def test_pauses_double_up_to_a_limit_with_jitter(failures, base):
    rng = random.Random(1)
    waits = [exponential_backoff(50, 1000, failures, rng) for _ in range(200)]
    assert base * (1 - JITTER) <= min(waits) < max(waits) <= base * (1 + JITTER)
    assert max(waits) - min(waits) > base * JITTER  # they differ


def test_no_failure_or_no_base_means_no_back_off():
    assert exponential_backoff(50, 1000, 0, random.Random()) == exponential_backoff(0, 1000, 5, random.Random()) == 0


def test_a_wakeup_from_another_thread_ends_a_poll(client):
    threading.Timer(0.05, client.wakeup).start()
    before = SYSTEM_CLOCK.monotonic_ms()
    client.poll(20_000, before)
    assert SYSTEM_CLOCK.monotonic_ms() - before < 10_000


def test_no_wakeup_is_lost_however_it_falls_between_draining_and_polling(client):
    """With the flag taken down before the pipe is drained, a wakeup in between would silence all later ones."""
    receiver = client._wake_receiver

    class Between:
        def recv(self, size):
            data = receiver.recv(size)
            client.wakeup()  # exactly there
            return data

        def close(self):
            receiver.close()

    client.wakeup()
    client._wake_receiver = Between()
    client.poll(0, 0)
    client._wake_receiver = receiver
    client.wakeup()
    before = SYSTEM_CLOCK.monotonic_ms()
    client.poll(20_000, before)
    assert SYSTEM_CLOCK.monotonic_ms() - before < 10_000


def test_wakeups_in_a_storm_all_arrive(client):
    woken = threading.Event()
    seen: list[bool] = []

    def poller():
        while len(seen) < 2000:
            client.poll(20_000, SYSTEM_CLOCK.monotonic_ms())
            seen.append(True)
            woken.set()

    thread = threading.Thread(target=poller)
    thread.start()
    while thread.is_alive():
        woken.clear()
        client.wakeup()
        assert woken.wait(10) or not thread.is_alive()
    thread.join(10)


def test_a_failed_attempt_is_not_repeated_before_its_pause_is_over(client, monkeypatch):
    def nowhere(endpoint):
        tries.append(endpoint)
        raise socket.gaierror(socket.EAI_NONAME, "cannot resolve")

    tries: list[Endpoint] = []
    monkeypatch.setattr(network, "resolve", nowhere)
    client.set_node(1, Endpoint("nowhere", 1))
    now = SYSTEM_CLOCK.monotonic_ms()
    for _ in range(10):
        assert not client.is_ready(1, now)
    assert len(tries) == 1
    assert client.is_backing_off(1, now)
    assert client.least_loaded_node([1], now) is None
    assert 30 < client.delay_ms(1, now) < 70
    assert not client.is_ready(1, now + 100)
    assert len(tries) == 2
    assert "cannot resolve" in str(client.last_failure)


def test_a_node_that_moved_or_left_is_connected_to_no_more(client):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client.set_node(1, Endpoint("127.0.0.1", port))
        client.is_ready(1, SYSTEM_CLOCK.monotonic_ms())
        assert client.connection_count() == 1
        client.set_node(1, Endpoint("127.0.0.1", port))
        assert client.connection_count() == 1
        client.set_node(1, Endpoint("localhost", port))
        assert client.connection_count() == 0
        client.is_ready(1, SYSTEM_CLOCK.monotonic_ms())
        assert client.connection_count() == 1
        client.remove_node(1)
        assert (client.connection_count(), client.knows_node(1)) == (0, False)


def test_the_set_up_time_grows_with_failures(client, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        at = Address(socket.AF_INET, listener.getsockname())
        monkeypatch.setattr(network, "resolve", lambda endpoint: [at])
        client.set_node(1, Endpoint("b", 1))
        client._nodes[1].failures = 1
        client.is_ready(1, 0.0)
        waits = client._connections[1].next_deadline_ms()
        assert 20_000 * (1 - JITTER) <= waits <= 20_000 * (1 + JITTER)


def test_closing_leaves_no_socket_behind():
    made = NetworkClient(ConnectionSettings("test"), NetworkSettings(), SYSTEM_CLOCK)
    made.close()
    assert eventually("closed", lambda: made._wake_receiver.fileno() == made._wake_sender.fileno() == -1)
