"""Fetch sessions of clients (KIP-227): what has changed, and nothing else, goes over the network."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace.broker import EmbeddedBroker
from headrace.errors import Code
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from headrace.wire.api.metadata import MetadataRequest
from headrace.wire.layout import Record
from headrace.wire.records import encode
from tests.support.peers.connection import Connection
from tests.support.pipelining import RawConnection, frame
from tests.support.topics import new_topic

WAIT_MS = 20_000


def batch(value: bytes = b"v") -> memoryview:
    return encode([Record(0, 1, None, value, ())])


class Session:
    """A fetch session of a raw client."""

    def __init__(self, connection: Connection, topic: str, version: int) -> None:
        self.connection, self.topic, self.version = connection, topic, version
        response = connection.call(MetadataRequest(topics=None), 12)
        self.topic_id = next(row.topic_id for row in response.topics if row.name == topic)
        self.id = self.epoch = 0

    def request(self, offsets: dict[int, int], forget: tuple[int, ...] = (), **changes: Any) -> FetchRequest:
        rows = [FetchPartition(partition=i, fetch_offset=at, partition_max_bytes=1 << 20) for i, at in offsets.items()]
        topics = [FetchTopic(topic=self.topic, topic_id=self.topic_id, partitions=rows)] if rows else []
        forgotten = [ForgottenTopic(topic=self.topic, topic_id=self.topic_id, partitions=[*forget])] if forget else []
        values: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 24, **changes}
        values = {"session_id": self.id, "session_epoch": self.epoch, **values}
        return FetchRequest(topics=topics, forgotten_topics_data=forgotten, **values)

    def fetch(self, offsets: dict[int, int], forget: tuple[int, ...] = (), **changes: Any) -> dict[int, int]:
        """Fetch in the session; the partitions of the response, with the sizes of their records."""
        response = self.connection.call(self.request(offsets, forget, **changes), self.version)
        assert response.error_code == 0
        self.id, self.epoch = response.session_id, self.epoch + 1
        return sizes(response)


def sizes(response: FetchResponse) -> dict[int, int]:
    return {part.partition_index: len(part.records or b"") for topic in response.responses for part in topic.partitions}


@pytest.fixture(params=[12, 13])
def session(request, broker, connection):
    """A session with three partitions, begun."""
    begun = Session(connection, new_topic(broker, "session", partitions=3), request.param)
    assert begun.fetch({0: 0, 1: 0, 2: 0}) == {0: 0, 1: 0, 2: 0}
    assert begun.id > 0
    return begun


@pytest.mark.behaviour("C05")
def test_an_incremental_fetch_returns_only_what_has_changed(session, connection):
    assert session.fetch({}) == {}
    connection.produce(session.topic, batch(), partition=1)
    assert [*session.fetch({})] == [1]
    assert [*session.fetch({})] == [1], "the client has not advanced, so it gets the records again"
    assert session.fetch({1: 1}) == {}
    connection.produce(session.topic, batch(), partition=0)
    connection.produce(session.topic, batch(), partition=1)
    assert {*session.fetch({})} == {0, 1}


@pytest.mark.behaviour("C05")
def test_forgotten_partitions_are_not_returned(session, connection):
    connection.produce(session.topic, batch(), partition=0)
    connection.produce(session.topic, batch(), partition=1)
    assert [*session.fetch({}, forget=(0,))] == [1]
    assert {*session.fetch({0: 0})} == {0, 1}
    assert session.fetch({}, forget=(0, 1, 2)) == {}
    assert session.id == 0, "a session without partitions is closed"


def test_what_does_not_fit_comes_with_the_next_fetch(session, connection):
    for partition in range(3):
        connection.produce(session.topic, batch(bytes(1000)), partition=partition)
    seen: set[int] = set()
    advanced: dict[int, int] = {}
    for _ in range(3):
        filled = [index for index, size in session.fetch(advanced, max_bytes=10).items() if size]
        assert len(filled) == 1
        seen.update(filled)
        advanced = dict.fromkeys(filled, 1)
    assert seen == {0, 1, 2}


@pytest.mark.parametrize(("produced", "min_bytes"), [(1, 1), (3, 2500)])
def test_an_incremental_fetch_waits_for_min_bytes(broker, session, connection, produced, min_bytes):
    request = session.request({}, max_wait_ms=WAIT_MS, min_bytes=min_bytes)
    with RawConnection(broker.bootstrap) as raw:
        raw.send(frame(request, session.version))
        began = time.monotonic()
        for number in range(produced):
            raw.socket.settimeout(0.2)
            with pytest.raises(TimeoutError):
                raw.frames(1)
            connection.produce(session.topic, batch(bytes(1000)), partition=number)
        raw.socket.settimeout(20)
        assert len(sizes(raw.response(request, session.version))) == produced
        assert time.monotonic() - began < 15


def test_an_incremental_fetch_ends_after_max_wait(session):
    began = time.monotonic()
    assert session.fetch({}, max_wait_ms=300) == {}
    assert 0.25 < time.monotonic() - began < 5


@pytest.mark.behaviour("C05")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"session_id": 12345}, Code.FETCH_SESSION_ID_NOT_FOUND),
        ({"session_epoch": 7}, Code.INVALID_FETCH_SESSION_EPOCH),
    ],
)
def test_a_wrong_session_id_or_epoch_is_an_error(session, connection, change, code):
    response = connection.call(session.request({0: 0}, **change), session.version)
    assert (response.error_code, response.session_id) == (code, 0)
    assert session.fetch({}) == {}, "the session is still there"


def test_a_session_cannot_change_between_topic_names_and_ids(session, connection):
    response = connection.call(session.request({0: 0}), 25 - session.version)
    assert response.error_code == Code.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_final_or_new_session_closes_the_one_before(session, connection):
    old = session.id
    assert {*session.fetch({0: 0}, session_epoch=0)} == {0}
    response = connection.call(session.request({}, session_id=old, session_epoch=1), session.version)
    assert response.error_code == Code.FETCH_SESSION_ID_NOT_FOUND
    response = connection.call(session.request({0: 0}, session_epoch=-1), session.version)
    assert (response.error_code, response.session_id, sizes(response)) == (0, 0, {0: 0})
    session.epoch = 1
    response = connection.call(session.request({}), session.version)
    assert response.error_code == Code.FETCH_SESSION_ID_NOT_FOUND


def test_a_deleted_topic_ends_the_wait_and_is_reported_until_it_is_forgotten(broker, session):
    request = session.request({}, max_wait_ms=WAIT_MS)
    expected = Code.UNKNOWN_TOPIC_ID if session.version > 12 else Code.UNKNOWN_TOPIC_OR_PARTITION
    with RawConnection(broker.bootstrap) as raw:
        raw.send(frame(request, session.version))
        broker.delete_topic(session.topic)
        raw.socket.settimeout(15)
        first = raw.response(request, session.version)
    session.epoch += 1
    again = session.connection.call(session.request({}, max_wait_ms=WAIT_MS), session.version)
    for response in (first, again):
        codes = {part.error_code for topic in response.responses for part in topic.partitions}
        assert (response.error_code, codes) == (0, {expected})


def test_sessions_without_room_are_not_kept():
    with EmbeddedBroker({"max.incremental.fetch.session.cache.slots": "1"}) as small:
        topic = small.create_topic("few", 1)
        with Connection(small.bootstrap) as connection:
            first, second = Session(connection, topic, 12), Session(connection, topic, 12)
            assert first.fetch({0: 0}) == {0: 0}
            assert second.fetch({0: 0}) == {0: 0}
            assert (first.id > 0, second.id) == (True, 0)
            assert first.fetch({}) == {}
            assert first.fetch({0: 0}, session_epoch=-1) == {0: 0}  # it is closed
            second.epoch = 0
            assert second.fetch({0: 0}) == {0: 0}
            assert second.id > 0
