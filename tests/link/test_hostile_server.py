"""Hostile servers: the client reports the problem, and uses the next connection."""

from __future__ import annotations

import re
import resource
import ssl
import struct
import time

import pytest

from headrace.client import tls
from headrace.client.network import NetworkSettings
from headrace.client.tls import TlsSettings
from headrace.errors import AuthenticationError, ConnectionFailedError, TlsError, UnsupportedVersionError
from headrace.wire.api.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from headrace.wire.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tests.support.scripted import API_VERSIONS, METADATA, HungUpError, api_versions, behave, encoded, metadata

METADATA_REQUEST = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
PRODUCE = 0


def produce_request(data, acks=-1):
    partition = PartitionProduceData(partition_index=0, records=data)
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[partition])]
    )


def produced(peer, header, message):
    partition = PartitionProduceResponse(partition_index=0, base_offset=7)
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[partition])])


# -- before anything is agreed ------------------------------------------------------------------


def hang_up(peer):
    pass


def hang_up_after_reading(peer):
    peer.request()


def reset(peer):
    peer.request()
    peer.reset()


def http(peer):
    peer.request()
    peer.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def tls_alert(peer):
    peer.request()
    peer.send(b"\x15\x03\x03\x00\x02\x02\x46")


def garbage(peer):
    peer.send(b"\xde\xad\xbe\xef" * 100)
    peer.silence()


def promise(peer):
    """As much as an int32 can promise, and then nothing."""
    peer.send(struct.pack(">i", 0x7FFFFFFF))
    peer.silence()


def unexpected(peer):
    peer.send(struct.pack(">ii", 4, 99))
    peer.silence()


def short_frame(peer):
    header, _ = peer.request()
    peer.send(struct.pack(">ii", 4, header.correlation_id))
    peer.silence()


def wrong_id(peer):
    header, message = peer.request()
    peer.respond(header, api_versions(peer, header, message), shift=5)
    peer.silence()


def refuse(peer):
    header, _ = peer.request()
    peer.respond(header, ApiVersionsResponse(error_code=41))
    peer.silence()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (hang_up, "does security.protocol match its listener?"),
        (hang_up_after_reading, "closed the connection before it was set up"),
        (reset, "failed: .*[Rr]eset"),
        (http, "uses HTTP: set bootstrap.servers to the port of a Kafka listener"),
        (tls_alert, "uses TLS, but security.protocol is PLAINTEXT: set security.protocol=SSL"),
        (garbage, "got a size of -559038737"),
        (promise, "got a size of 2147483647"),
        (unexpected, "responded to request 99, expected 1"),
        (short_frame, "expected"),
        (wrong_id, "responded to request 6, expected 1"),
        (refuse, "ApiVersions failed on .*: NOT_CONTROLLER"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_start_is_explained_and_the_next_connection_works(links, script, said):
    probed = [hang_up] if script in (hang_up, hang_up_after_reading, reset) else []  # whether it uses TLS: it does not
    link = links.to(script, *probed, behave)
    failure = link.fail_to_connect()
    assert re.search(said, failure), failure
    assert link.send_request(METADATA_REQUEST).message.topics[0].name == "t"
    assert link.client.last_failure is None


def test_after_a_response_the_protocol_is_not_probed_again(links):
    """A probe would send a TLS handshake to the last script, which fails on it."""

    def respond_once(peer):
        for response in (api_versions, metadata):
            header, message = peer.request()
            peer.respond(header, response(peer, header, message))

    link = links.to(respond_once, hang_up, behave)
    assert link.send_request(METADATA_REQUEST).message.topics[0].name == "t"
    link.until("the end of the connection", lambda: not link.client.is_connected(1))
    assert link.send_request(METADATA_REQUEST).message.topics[0].name == "t"


@pytest.mark.behaviour("P39")
def test_a_server_that_never_responds_times_out(links):
    link = links.to(lambda peer: peer.silence(), behave, connect_timeout_ms=100)
    assert "timed out after" in (said := link.fail_to_connect())
    assert "negotiating" in said
    assert link.send_request(METADATA_REQUEST).error is None


def test_a_refused_connection_names_the_address(links):
    server = links.server()
    server.close()
    link = links.link(server)
    said = link.fail_to_connect()
    assert f"cannot connect to {server.address}" in said
    assert "is a broker running there?" in said


# -- in the middle of things --------------------------------------------------------------------


def test_a_wrong_correlation_id_closes_the_connection(links):
    def mixed_up(peer):
        peer.serve(requests_max=1)
        header, message = peer.request()
        peer.respond(header, metadata(peer, header, message), shift=1)
        peer.silence()

    link = links.to(mixed_up, behave)
    response = link.send_request(METADATA_REQUEST)
    assert isinstance(response.error, ConnectionFailedError)
    assert "closing the connection" in str(response.error)
    assert link.send_request(METADATA_REQUEST).error is None


def test_an_undecodable_response_counts_as_lost(links):
    def mumble(peer):
        peer.serve({METADATA: lambda peer, header, message: struct.pack(">iiq", 12, header.correlation_id, -1)})

    link = links.to(mumble, behave)
    response = link.send_request(METADATA_REQUEST)
    assert isinstance(response.error, ConnectionFailedError)
    assert "undecodable response" in str(response.error)
    assert link.send_request(METADATA_REQUEST).error is None


def test_an_unexpected_response_closes_the_connection(links):
    def talkative(peer):
        peer.serve(requests_max=1)
        peer.send(struct.pack(">ii", 4, 2))
        peer.silence()

    link = links.to(talkative, behave)
    link.until("the end", lambda: not link.client.is_ready(1, link.now) and link.client.last_failure)
    assert "unexpected response" in str(link.client.last_failure)
    assert link.send_request(METADATA_REQUEST).error is None


def test_a_disconnect_in_a_response_fails_the_request_once(links):
    def half(peer):
        peer.serve(requests_max=1)
        header, message = peer.request()
        frame = encoded(header, metadata(peer, header, message))
        peer.send(frame[: len(frame) // 2])

    link = links.to(half, behave)
    response = link.send_request(METADATA_REQUEST)
    assert isinstance(response.error, ConnectionFailedError)
    assert "1 requests in flight" in str(response.error) or "after the first request" in str(response.error)
    assert link.send_request(METADATA_REQUEST).error is None


def test_responses_before_a_disconnect_count(links):
    def two_of_three(peer):
        peer.serve(requests_max=1)
        requests = [peer.request() for _ in range(3)]
        peer.send(b"".join(encoded(header, metadata(peer, header, m)) for header, m in requests[:2]) + b"\0\0")

    link = links.to(two_of_three, behave)
    pending = [link.begin(METADATA_REQUEST) for _ in range(3)]
    link.until("three responses", lambda: all(pending))
    outcomes = [responses[0].error is None for responses in pending]
    assert outcomes == [True, True, False]


def test_responses_before_garbage_in_the_same_bytes_count(links):
    def good_then_bad(peer):
        peer.serve(requests_max=1)
        header, message = peer.request()
        peer.send(encoded(header, metadata(peer, header, message)) + b"\xff" * 40)
        peer.silence()

    link = links.to(good_then_bad, behave)
    assert link.send_request(METADATA_REQUEST).message.topics[0].name == "t"
    link.until("the end", lambda: not link.client.is_connected(1))


def test_bytes_that_arrive_one_by_one_make_a_response(links):
    def slow(peer):
        peer.serve(
            {
                API_VERSIONS: lambda peer, h, m: peer.drip(encoded(h, api_versions(peer, h, m))),
                METADATA: lambda peer, h, m: peer.drip(encoded(h, metadata(peer, h, m))),
            }
        )

    link = links.to(slow)
    assert link.send_request(METADATA_REQUEST).message.topics[0].name == "t"
    assert link.send_request(METADATA_REQUEST).message.topics[0].name == "t"


def test_a_huge_length_prefix_allocates_no_memory(links):
    """A frame of 90 MiB is allowed and announced, but never sent."""

    def promising(peer):
        peer.serve(requests_max=1)
        peer.request()
        peer.send(struct.pack(">i", 90 * 1024 * 1024) + bytes(200_000))
        peer.silence()

    link = links.to(promising, behave)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    response = link.send_request(METADATA_REQUEST, timeout_ms=300)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert isinstance(response.error, ConnectionFailedError)
    assert grown_kib < 20 * 1024


# -- time ---------------------------------------------------------------------------------------


@pytest.mark.behaviour("P41")
def test_a_response_timeout_closes_the_connection_and_fails_its_requests(links):
    def deaf(peer):
        peer.serve(requests_max=1)
        peer.silence()

    link = links.to(deaf, behave)
    first, second = link.begin(METADATA_REQUEST, timeout_ms=100), link.begin(METADATA_REQUEST, timeout_ms=10_000)
    link.until("both", lambda: first and second)
    assert "did not respond to Metadata for 1" in str(first[0].error)
    assert isinstance(second[0].error, ConnectionFailedError)
    assert link.send_request(METADATA_REQUEST).error is None


def throttling(peer):
    peer.serve({METADATA: lambda p, h, m: metadata(p, h, m).replace(throttle_time_ms=300)})


@pytest.mark.behaviour("P34")
def test_a_throttled_client_sends_nothing_for_the_throttle_time(links):
    link = links.to(throttling)
    link.send_request(METADATA_REQUEST)
    assert not link.client.is_ready(1, link.now)
    assert link.client.least_loaded_node([1], link.now) == 1  # the only node
    assert 200 < link.client.delay_ms(1, link.now) <= 300
    assert link.client.is_ready(1, link.now + 301)


def test_throttling_by_an_old_broker_is_not_repeated_by_the_client(links):
    """It has delayed the response itself."""
    link = links.to(
        lambda peer: peer.serve({METADATA: lambda p, h, m: metadata(p, h, m).replace(throttle_time_ms=300)})
    )
    link.send_request(METADATA_REQUEST, versions=(5, 5))
    assert link.client.is_ready(1, link.now)


@pytest.mark.behaviour("P35", "P39")
def test_an_idle_connection_is_closed_after_its_timeout_without_polling(links):
    link = links.to(behave, network=NetworkSettings(connections_max_idle_ms=300))
    link.send_request(METADATA_REQUEST)
    link.polls, cpu = 0, time.process_time()
    link.until("the connection to close", lambda: link.client.connection_count() == 0)
    assert link.polls <= 4
    assert time.process_time() - cpu < 0.1


@pytest.mark.behaviour("P35", "P39")
def test_an_unreachable_node_is_retried_after_its_backoff(links):
    server = links.server()
    server.close()
    link = links.link(server, NetworkSettings(reconnect_backoff_ms=50, reconnect_backoff_max_ms=100))
    updater = links.updater(link, server.address)
    end, turns = link.now + 600, 0
    while (now := link.now) < end:
        turns += 1
        link.client.poll(min(updater.maybe_update(now), end - now), now)
    assert turns < 60


# -- versions -----------------------------------------------------------------------------------


@pytest.mark.behaviour("P40")
def test_api_versions_falls_back_to_version_0(links):
    versions_requested = []

    def old(peer):
        def respond(peer, header, message):
            versions_requested.append(header.api_version)
            if header.api_version == 0:
                return api_versions(peer, header, message)
            only = [ApiVersion(api_key=18, min_version=0, max_version=0)]
            return encoded(header, ApiVersionsResponse(error_code=35, api_keys=only), version=0)

        peer.serve({API_VERSIONS: respond})

    link = links.to(old)
    assert link.send_request(METADATA_REQUEST).error is None
    assert versions_requested == [3, 0]


@pytest.mark.behaviour("P40")
def test_an_unsupported_request_fails_and_keeps_the_connection(links):
    server = links.server()
    server.api_ranges = {3: (1, 4), 18: (0, 3)}
    link = links.link(server)
    missing = link.send_request(produce_request(b""))
    assert isinstance(missing.error, UnsupportedVersionError)
    assert "Produce needs a version of 0 to 13; the broker supports none" in str(missing.error)
    too_new = link.send_request(METADATA_REQUEST, versions=(5, 9))
    assert "the broker supports 1 to 4" in str(too_new.error)
    cannot_say = link.send_request(MetadataRequest(topics=[], include_topic_authorized_operations=True))
    assert isinstance(cannot_say.error, UnsupportedVersionError)
    assert link.send_request(METADATA_REQUEST).error is None
    assert server.accepted == 1


@pytest.mark.behaviour("P40")
def test_the_highest_version_both_know_is_used(links):
    versions = []

    def noting(peer):
        def respond(peer, header, message):
            versions.append(header.api_version)
            return metadata(peer, header, message)

        peer.serve({METADATA: respond})

    link = links.to(noting)
    link.send_request(METADATA_REQUEST)
    link.send_request(METADATA_REQUEST, versions=(0, 4))
    assert versions == [9, 4]


# -- writing ------------------------------------------------------------------------------------


@pytest.mark.behaviour("P42")
def test_a_request_larger_than_the_socket_takes_resumes_where_it_stopped(links):
    data = bytes(range(256)) * 8192  # 2 MiB
    seen = []

    def reading_late(peer):
        def take(peer, header, message):
            seen.append(bytes(message.topic_data[0].partition_data[0].records))
            return produced(peer, header, message)

        peer.serve({PRODUCE: take})

    link = links.to(reading_late, send_buffer_bytes=64 * 1024)
    view = memoryview(bytearray(data))
    responses = [link.begin(produce_request(view)) for _ in range(3)]
    link.until("three responses", lambda: all(responses))
    assert [r[0].message.responses[0].partition_responses[0].base_offset for r in responses] == [7, 7, 7]
    assert seen == [data] * 3


def test_requests_without_a_response_complete_in_order_when_written(links):
    order = []

    def taking(peer):
        peer.serve({PRODUCE: lambda *_: None})

    link = links.to(taking, send_buffer_bytes=64 * 1024)
    big = produce_request(bytes(1_000_000), acks=0)
    first = link.begin(big, expects_response=False)
    middle = link.begin(METADATA_REQUEST)
    last = link.begin(big, expects_response=False)

    def note():
        for name, responses in (("first", first), ("middle", middle), ("last", last)):
            if responses and name not in order:
                order.append(name)
        return len(order) == 3

    link.until("all three", note)
    assert [responses[0].error for responses in (first, middle, last)] == [None] * 3
    assert link.client.in_flight_count(1) == 0


def test_unwritten_requests_without_a_response_fail_with_the_connection(links):
    def closing(peer):
        peer.serve(requests_max=1)
        peer.socket.recv(1000)

    link = links.to(closing, behave, send_buffer_bytes=16 * 1024)
    lost = link.begin(produce_request(bytes(8_000_000), acks=0), expects_response=False)
    link.until("its end", lambda: lost)
    assert isinstance(lost[0].error, ConnectionFailedError)


# -- TLS on one side only -----------------------------------------------------------------------


def server_context(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def client_context(certificate):
    return tls.context(TlsSettings(ca_file=str(certificate[0])))


def test_a_plain_client_at_a_tls_port_gets_a_hint(links, certificate):
    server = links.server(tls=server_context(certificate))
    said = links.link(server).fail_to_connect()
    assert "uses TLS" in said or "does security.protocol match its listener?" in said


def test_a_tls_client_at_a_plain_port_gets_a_hint(links, certificate):
    def as_kafka_does(peer):
        peer.socket.recv(100)  # a ClientHello is a size beyond all limits

    link = links.to(as_kafka_does, tls_context=client_context(certificate))
    assert "does it use TLS on this port (security.protocol)" in link.fail_to_connect()
    assert not link.auth_errors

    babbling = links.to(http_always, tls_context=client_context(certificate))
    assert "does not use TLS on this port" in babbling.fail_to_connect()
    assert isinstance(babbling.auth_errors[0], TlsError)


def http_always(peer):
    peer.socket.recv(100)
    peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def reset_in_handshake(peer):
    peer.socket.recv(2000)
    peer.reset()


def size_as_a_plaintext_broker_does(peer):
    peer.socket.recv(2000)
    peer.send(struct.pack(">ii", 4, 1))


@pytest.mark.parametrize("second", [tls_alert, reset_in_handshake, http_always])
def test_a_tls_connection_that_is_reset_in_the_handshake_is_retried(links, certificate, second):
    """The second connection is without TLS: a TLS alert in response shows that the listener is the right one."""
    link = links.to(reset_in_handshake, second, tls_context=client_context(certificate))
    assert "closed the connection in the TLS handshake" in link.fail_to_connect()
    assert isinstance(link.client.last_failure, ConnectionFailedError)
    assert not link.auth_errors


@pytest.mark.parametrize("second", [reset_in_handshake, size_as_a_plaintext_broker_does, http_always])
def test_a_plaintext_connection_that_is_reset_is_retried(links, second):
    """The second connection is with TLS: no response to it shows that the listener uses TLS."""
    link = links.to(reset, second, behave)
    assert re.search("failed: .*[Rr]eset", link.fail_to_connect())
    link.connect()
    assert not link.auth_errors


def test_an_untrusted_certificate_is_an_authentication_error(links, certificate):
    server = links.server(tls=server_context(certificate))
    link = links.link(server, tls_context=tls.context(TlsSettings()))
    said = link.fail_to_connect()
    assert "is not trusted" in said
    assert isinstance(link.auth_errors[0], AuthenticationError)


def test_large_requests_and_responses_over_tls(links, certificate):
    data = bytes(range(256)) * 8192  # 2 MiB
    names = [f"topic-{i}" for i in range(20_000)]

    def serve(peer):
        def take(peer, header, message):
            assert bytes(message.topic_data[0].partition_data[0].records) == data
            return produced(peer, header, message)

        peer.serve({PRODUCE: take})

    server = links.server(serve, tls=server_context(certificate))
    link = links.link(server, tls_context=client_context(certificate))
    responses = [link.begin(produce_request(memoryview(data))) for _ in range(3)]
    link.until("three responses", lambda: all(responses))
    assert [r[0].error for r in responses] == [None] * 3
    many = link.send_request(MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names]))
    assert [topic.name for topic in many.message.topics] == names
    assert isinstance(many.message, MetadataResponse)


def test_a_server_script_ends_when_the_client_disconnects(links):
    """The scripted server itself: no thread of it outlives a test."""
    left = []

    def wait(peer):
        try:
            peer.serve()
        except HungUpError:
            left.append(True)
            raise

    server = links.server(wait)
    link = links.link(server)
    link.connect()
    link.client.remove_node(1)
    server.close()
    assert left == [True]
