"""Bootstrap: every address and every DNS result is tried, and tried again when no known broker is reachable."""

from __future__ import annotations

import socket

import pytest

from headrace.client import network
from headrace.client.addresses import Address, Endpoint
from headrace.errors import BrokerError, UnsupportedVersionError
from headrace.wire.api.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from tests.support.peers.real_kafka import free_ports
from tests.support.scripted import METADATA, behave, metadata


def run(link, updater, what, true):
    deadline = link.now + 15_000
    while not true():
        assert link.now < deadline, f"{what}: not after 15 s"
        link.client.poll(min(50.0, updater.maybe_update(link.now)), link.now)


@pytest.mark.behaviour("P11")
def test_every_bootstrap_address_is_tried(links):
    dead = free_ports(2)
    server = links.server()
    link = links.link(server)
    servers = ",".join([*(f"127.0.0.1:{port}" for port in dead), server.address])
    updater = links.updater(link, servers)
    run(link, updater, "metadata", lambda: updater.metadata.cluster.brokers)
    assert updater.metadata.cluster.brokers == {1: Endpoint("127.0.0.1", server.port)}
    assert updater.node_ids == [1]


def test_a_silent_bootstrap_server_does_not_delay_the_others(links):
    """It accepts connections but never responds: other servers are tried after a second, before the set-up time-out."""
    silent = links.server(lambda peer: peer.silence())
    server = links.server()
    link = links.link(server, connect_timeout_ms=10_000)
    updater = links.updater(link, f"{silent.address},{server.address}")
    started = link.now
    run(link, updater, "metadata", lambda: updater.metadata.cluster.brokers)
    assert link.now - started < 5000


@pytest.mark.behaviour("P11")
def test_every_address_of_a_name_is_tried_without_waiting(links, monkeypatch):
    server = links.server()
    dead = free_ports(2)
    addresses = [Address(socket.AF_INET, ("127.0.0.1", port)) for port in (*dead, server.port)]
    monkeypatch.setattr(network, "resolve", lambda endpoint: addresses)
    link = links.link(server, network.NetworkSettings(reconnect_backoff_ms=10_000, reconnect_backoff_max_ms=10_000))
    started = link.now
    link.connect()
    assert link.now - started < 5000


def test_a_name_is_looked_up_again_after_all_its_addresses_failed(links, monkeypatch):
    server = links.server()
    (dead,) = free_ports(1)
    responses = [[Address(socket.AF_INET, ("127.0.0.1", port))] for port in (dead, server.port)]
    monkeypatch.setattr(network, "resolve", lambda endpoint: responses.pop(0))
    links.link(server).connect()
    assert not responses


def test_a_name_that_cannot_be_resolved_is_a_failure_like_others(links, monkeypatch):
    server = links.server()
    addresses = [Address(socket.AF_INET, ("127.0.0.1", server.port))]
    tries = []

    def resolve(endpoint):
        tries.append(endpoint)
        if len(tries) == 1:
            raise socket.gaierror(socket.EAI_NONAME, "cannot resolve 'broker'")
        return addresses

    monkeypatch.setattr(network, "resolve", resolve)
    link = links.link(server)
    assert "cannot resolve" in link.fail_to_connect()
    link.connect()


@pytest.mark.behaviour("P11")
def test_without_a_reachable_broker_bootstrap_servers_are_used_again(links):
    """The cluster has moved: the brokers of the first metadata are down, and the bootstrap address has new ones."""
    (dead,) = free_ports(1)

    def gone(peer, header, message):
        return MetadataResponse(brokers=[MetadataResponseBroker(node_id=5, host="127.0.0.1", port=dead)])

    def first(peer):
        peer.serve({METADATA: gone})

    server = links.server(first, behave)
    link = links.link(server)
    updater = links.updater(link, server.address)
    run(link, updater, "the first response", lambda: 5 in updater.metadata.cluster.brokers)
    link.client.remove_node(-1)  # else its connection would still be there
    link.client.set_node(-1, Endpoint("127.0.0.1", server.port))
    updater.metadata.request_update()
    run(link, updater, "the second", lambda: 1 in updater.metadata.cluster.brokers)
    assert updater.node_ids == [1]


def test_without_recovery_the_known_brokers_are_kept(links):
    (dead,) = free_ports(1)
    response = MetadataResponse(brokers=[MetadataResponseBroker(node_id=5, host="127.0.0.1", port=dead)])
    server = links.server(lambda peer: peer.serve({METADATA: lambda *_: response}))
    link = links.link(server)
    updater = links.updater(link, server.address, rebootstrap_trigger_ms=None)
    run(link, updater, "the response", lambda: 5 in updater.metadata.cluster.brokers)
    updater.metadata.request_update()
    end = link.now + 1500
    while link.now < end:
        link.client.poll(min(50.0, updater.maybe_update(link.now)), link.now)
    assert updater.node_ids == [5]


def test_a_rebootstrap_error_uses_the_bootstrap_servers_again(links):
    def respond(peer, header, message):
        versions.append(header.api_version)
        reply = metadata(peer, header, message)
        return reply.replace(error_code=129) if len(versions) == 2 else reply

    versions = []
    server = links.server(lambda peer: peer.serve({METADATA: respond}))
    server.api_ranges[3] = (1, 13)
    link = links.link(server)
    updater = links.updater(link, server.address)
    run(link, updater, "metadata", lambda: updater.metadata.cluster.brokers)
    updater.metadata.request_update()
    run(link, updater, "going back", lambda: updater.node_ids == [-1])
    run(link, updater, "metadata again", lambda: updater.node_ids == [1])


@pytest.mark.behaviour("P10")
def test_a_topic_without_permission_fails_at_once(links):
    def respond(peer, header, message):
        topics = [MetadataResponseTopic(name=topic.name, error_code=29) for topic in message.topics]
        return metadata(peer, header, message).replace(topics=topics)

    server = links.server(lambda peer: peer.serve({METADATA: respond}))
    link = links.link(server)
    updater = links.updater(link, server.address)
    run(link, updater, "metadata", lambda: updater.metadata.cluster.errors)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        updater.metadata.raise_topic_error("t")
    assert updater.maybe_update(link.now) > 1000  # a retry would not help


def test_an_unsupported_metadata_version_fails_all_waits(links):
    server = links.server()
    server.api_ranges = {18: (0, 3), 3: (40, 41)}
    link = links.link(server)
    updater = links.updater(link, server.address)

    update_seq = updater.metadata.request_update()

    def wait():
        for _ in range(200):
            link.client.poll(min(50.0, updater.maybe_update(link.now)), link.now)
            updater.metadata.wait_for_update(update_seq, 0)

    with pytest.raises(UnsupportedVersionError, match="Metadata"):
        wait()
