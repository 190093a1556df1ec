"""Fault injection: matching of requests, effects, and an error response for every API."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker import EmbeddedBroker
from headrace.broker.context import Context, Session
from headrace.broker.error_responses import error_response, topics_in
from headrace.broker.faults import CRASH_EXIT_CODE, CloseConnection, Faults, api_key_of
from headrace.errors import Code, ConfigError, IllegalStateError
from headrace.wire import fields
from headrace.wire.api import APIS, request_class, response_class
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.api.groups import HeartbeatRequest, HeartbeatResponse
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseTopic
from headrace.wire.api.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.api.transactions import EndTxnRequest
from headrace.wire.layout import Record
from headrace.wire.records import encode
from tests.support.peers.connection import Connection
from tests.support.waiting import eventually

METADATA, HEARTBEAT = 3, 12
SILENCE_SECONDS = 0.3


def context(message, version=0, client_id="tests"):
    return Context(Session("127.0.0.1", "PLAINTEXT"), message.api_key, version, client_id, 1)


def filled(cls, version):
    """A request with something in every array, so that the response has entries."""
    values: dict[str, Any] = {}
    for name, field in cls.fields.items():
        if version not in field.versions:
            continue
        if field.kind == fields.ARRAY:
            simple = "an element" if field.element == fields.STRING else 7
            values[name] = [filled(field.element, version) if isinstance(field.element, type) else simple]
        elif field.kind == fields.STRING:
            values[name] = f"a {name}"
        elif field.kind == fields.INT32:
            values[name] = 5
    return cls(**values)


def codes_in(struct, version):
    """Return all error codes of a response in its version."""
    for name, field in struct.fields.items():
        value = getattr(struct, name)
        if version not in field.versions:
            continue
        if name in ("error_code", "partition_error_code"):
            yield value
        elif field.kind == fields.ARRAY and isinstance(field.element, type):
            for element in value or ():
                yield from codes_in(element, version)


def failed(message, version, code) -> Any:
    """Return the response of a request that failed as a whole; no handler is called."""

    async def handle():
        pytest.fail("the handler was called")

    return asyncio.run(error_response(context(message, version), message, code, handle))


def meets(faults, message, version=0, client_id="tests"):
    """Return whether a fault matches a request."""
    return faults.match(context(message, version, client_id), message) is not None


def topics_of(message, **names):
    return [*topics_in(message, lambda topic_id: names.get(topic_id.decode()))]


# -- which requests ------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["EndTxn", "end_txn", "endtxn", "end-txn", 26, "26"])
def test_an_api_goes_by_many_names(api):
    assert api_key_of(api) == 26


def test_a_fault_meets_its_api_topic_and_client_only():
    faults = Faults()
    rule = faults.inject(api="Fetch", topic="orders-*", client_id="app?", drop=True)
    assert faults.active
    orders, others = (FetchRequest(topics=[FetchTopic(topic=name)]) for name in ("orders-7", "others"))
    assert meets(faults, orders, 4, "app1")
    assert not meets(faults, orders, 4, "another")
    assert not meets(faults, orders, 4, None)
    assert not meets(faults, others, 4, "app1")
    assert not meets(faults, EndTxnRequest(transactional_id="orders-1"), 0, "app1")
    assert rule.hits == 1


def test_topics_are_found_by_name_by_id_and_at_any_depth():
    by_id = FetchRequest(topics=[FetchTopic(topic_id=b"i" * 16, partitions=[FetchPartition(partition=1)])])
    assert topics_of(by_id, iiiiiiiiiiiiiiii="named") == ["named"]
    assert topics_of(filled(request_class(api_key_of("DeleteTopics")), 3)) == ["an element"]
    assert topics_of(filled(request_class(api_key_of("AddPartitionsToTxn")), 4)) == ["a name"]
    assert topics_of(filled(request_class(HEARTBEAT), 0)) == []


def test_a_count_runs_out_and_the_rest_takes_over():
    faults = Faults()
    faults.inject(api=HEARTBEAT, close=True, count=2)
    faults.inject(api=HEARTBEAT, drop=True, count=1)
    message = HeartbeatRequest()
    assert [meets(faults, message) for _ in range(5)] == [True] * 3 + [False] * 2
    assert not faults.active
    assert [(rule.hits, rule.is_spent) for rule in faults.list()] == [(2, True), (1, True)]
    assert faults.clear() == 2
    assert faults.list() == []


def test_chances_are_the_same_for_the_same_seed():
    message = HeartbeatRequest()

    def run(seed):
        faults = Faults()
        faults.inject(drop=True, probability=0.3, seed=seed)
        return [meets(faults, message) for _ in range(200)]

    assert run(1) == run(1) != run(2)
    assert 30 < sum(run(1)) < 90


def test_a_fault_that_is_removed_meets_nothing_more():
    faults = Faults()
    rule = faults.inject(drop=True)
    assert faults.remove(rule.id)
    assert not faults.remove(rule.id)
    assert not faults.active


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "expected one of error, delay_ms, drop, close and crash"),
        ({"drop": True, "close": True}, "got drop, close"),
        ({"api": "Nonsense", "drop": True}, "unknown API 'Nonsense'"),
        ({"api": 4711, "drop": True}, "unknown API key 4711"),
        ({"error": "NO_SUCH"}, "unknown error 'NO_SUCH'"),
        ({"drop": True, "when": "never"}, "expected before or after"),
        ({"delay_ms": -1}, "invalid delay_ms -1: expected 0 to"),
        ({"drop": True, "count": 0}, "invalid count 0: expected at least 1"),
        ({"drop": True, "probability": 0}, "invalid probability 0"),
        ({"drop": True, "colour": "red"}, "unknown field 'colour' of a fault"),
        ({"delay_ms": "long"}, "invalid type of a value"),
    ],
)
def test_an_invalid_fault_is_rejected(values, message):
    with pytest.raises(ConfigError, match=message):
        Faults().inject(**values)


def test_a_broker_that_shares_its_process_may_not_crash():
    faults = Faults()
    faults.may_crash = False
    with pytest.raises(IllegalStateError, match="a separate process"):
        faults.inject(crash=True)


# -- what becomes of them ------------------------------------------------------------------------


def meet(message, version=0, returned=None, **fault):
    """Return the response to a request that a fault matches, and how often its handler was called."""
    faults = Faults()
    faults.inject(**fault)
    request_context = context(message, version)
    match = faults.match(request_context, message)
    assert match is not None
    calls = []

    def handle():
        calls.append(message)
        return returned

    return asyncio.run(match.run(request_context, message, handle)), len(calls)


def test_before_and_after_differ_in_whether_the_work_was_done():
    returned = HeartbeatResponse()
    failed = HeartbeatResponse(error_code=27)
    assert meet(HeartbeatRequest(), returned=returned, error="REBALANCE_IN_PROGRESS") == (failed, 0)
    assert meet(HeartbeatRequest(), returned=returned, error=27, when="after") == (failed, 1)
    assert meet(HeartbeatRequest(), returned=returned, delay_ms=1) == (returned, 1)
    assert meet(HeartbeatRequest(), returned=returned, delay_ms=1, when="after") == (returned, 1)
    with pytest.raises(CloseConnection):
        meet(HeartbeatRequest(), returned=returned, close=True)


def test_an_error_without_a_response_closes_the_connection():
    with pytest.raises(CloseConnection):
        meet(ProduceRequest(acks=0), 9, error="NOT_LEADER_OR_FOLLOWER")


def test_a_dropped_request_ends_when_the_broker_stops():
    async def stopped():
        faults = Faults()
        faults.inject(drop=True)
        message = HeartbeatRequest()
        fault = faults.match(context(message), message)
        assert fault is not None
        waiting = asyncio.create_task(fault.run(context(message), message, lambda: None))
        await asyncio.sleep(0)
        faults.release()
        with pytest.raises(CloseConnection):
            await asyncio.wait_for(waiting, 5)

    asyncio.run(stopped())


@pytest.mark.parametrize("api_key", [key for key in APIS if key != METADATA])
def test_every_api_has_an_error_response_in_every_version(api_key):
    request, response = request_class(api_key), response_class(api_key)
    for version in range(request.versions.first, request.versions.last + 1):
        message = filled(request, version)
        returned = failed(message, version, 41)
        decoded = response.decode(version, returned.encode(version))
        codes = {*codes_in(decoded, version)}
        assert 41 in codes, version
        assert codes <= {0, 41}
        if api_key != api_key_of("Fetch"):
            assert codes == {41}, version


def test_an_error_response_names_the_requested_topics_and_partitions():
    partitions = [ListOffsetsPartition(partition_index=index) for index in (3, 9)]
    message = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=partitions)])
    returned = failed(message, 5, 6)
    ((topic),) = returned.topics
    assert topic.name == "t"
    assert [(row.partition_index, row.error_code, row.offset) for row in topic.partitions] == [(3, 6, -1), (9, 6, -1)]


def test_a_fetch_fails_by_partition_unless_the_session_is_to_blame():
    message = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=1)])])
    returned = failed(message, 12, Code.NOT_LEADER_OR_FOLLOWER)
    assert (returned.error_code, [*codes_in(returned, 12)]) == (0, [0, 6])
    returned = failed(message, 12, Code.FETCH_SESSION_ID_NOT_FOUND)
    assert returned.error_code == Code.FETCH_SESSION_ID_NOT_FOUND


def test_metadata_still_name_the_brokers():
    message = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    real = MetadataResponse(controller_id=1, topics=[MetadataResponseTopic(name="t", partitions=[])])
    returned, _ = meet(message, 8, real, error="LEADER_NOT_AVAILABLE")
    assert returned.controller_id == 1
    assert [(topic.name, topic.error_code) for topic in returned.topics] == [("t", 5)]


# -- on a real broker ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_broker():
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def broker(shared_broker):
    yield shared_broker
    shared_broker.faults.clear()


@pytest.fixture
def topic(broker, request):
    return broker.create_topic(request.node.name)


def batch(value=b"value"):
    return encode([Record(0, 1_700_000_000_000, None, value, ())])


def test_an_error_is_returned_and_nothing_written(broker, topic):
    fault = broker.faults.inject(api="Produce", topic=topic, error="NOT_ENOUGH_REPLICAS", count=1)
    with Connection(broker.bootstrap) as connection:
        assert connection.produce(topic, batch()).error_code == Code.NOT_ENOUGH_REPLICAS
        assert fault.hits == 1
        returned = connection.produce(topic, batch())
        assert (returned.error_code, returned.base_offset) == (0, 0)


def test_a_lost_acknowledgement_leaves_the_record_written(broker, topic):
    lost = broker.faults.inject(api="Produce", topic=topic, close=True, when="after")
    with lost, Connection(broker.bootstrap) as connection, pytest.raises(ConnectionError):
        connection.produce(topic, batch())
    with Connection(broker.bootstrap) as connection:
        assert connection.produce(topic, batch()).base_offset == 1


def test_a_dropped_request_has_no_response_and_others_have(broker, topic):
    broker.faults.inject(api="Produce", topic=topic, drop=True, count=1)
    with Connection(broker.bootstrap) as connection, Connection(broker.bootstrap) as other:
        partitions = [PartitionProduceData(partition_index=0, records=batch())]
        request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name=topic, partition_data=partitions)])
        connection.send(request, 9)
        connection._socket.settimeout(SILENCE_SECONDS)
        with pytest.raises(TimeoutError):
            connection._socket.recv(1)
        assert other.produce(topic, batch()).base_offset == 0


def test_a_topic_is_recognised_by_its_id(broker, topic):
    broker.faults.inject(api="Produce", topic=topic, error="NOT_LEADER_OR_FOLLOWER")
    with Connection(broker.bootstrap) as connection:
        metadata: Any = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12)
        partitions = [PartitionProduceData(partition_index=0, records=batch())]
        data = TopicProduceData(topic_id=metadata.topics[0].topic_id, partition_data=partitions)
        returned = connection.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 13)
    assert [*codes_in(returned, 13)] == [Code.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize(("when", "kept"), [("before", 0), ("after", 1)])
def test_a_crash_before_or_after_the_work(when, kept):
    with EmbeddedBroker() as broker:
        topic = broker.create_topic("crash")
        broker.faults.inject(api="Produce", crash=True, when=when)
        with Connection(broker.bootstrap) as connection, pytest.raises(ConnectionError):
            connection.produce(topic, batch())
        assert broker.wait(10) == CRASH_EXIT_CODE
        assert not broker.is_running
        broker.start()
        with Connection(broker.bootstrap) as connection:
            assert connection.produce(topic, batch()).base_offset == kept


def test_faults_are_listed_with_their_hits(broker, topic):
    broker.faults.inject(api="Produce", topic=topic, delay_ms=1, count=2)
    with Connection(broker.bootstrap) as connection:
        connection.produce(topic, batch())
    (rule,) = broker.faults.list()
    assert (rule["api"], rule["topic"], rule["hits"], rule["spent"]) == ("Produce", topic, 1, False)
    with pytest.raises(ConfigError, match="unknown API"):
        broker.faults.inject(api="Nonsense", drop=True)


def test_a_broker_with_dropped_requests_stops_at_once():
    with EmbeddedBroker() as broker:
        broker.faults.inject(api="Heartbeat", drop=True)
        with Connection(broker.bootstrap) as connection:
            connection.send(HeartbeatRequest(group_id="g", member_id="m"), 0)
            eventually("the request", lambda: broker.faults.list()[0]["hits"] == 1)
            broker.stop()
        assert not broker.is_running
