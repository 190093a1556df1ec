"""Members that the group has fenced: another client uses their id, or their process stood still for too long."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys

import pytest

from headrace import CommitFailedError, Consumer, TopicPartition
from headrace.types import GroupMetadata
from headrace.wire.api.groups import (
    ConsumerGroupHeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
)
from headrace.wire.consumer_protocol import ConsumerProtocolSubscription, encode_subscription
from tests.support.peers.connection import Connection
from tests.support.polling import SECONDS_MAX, Log, fill, poll_until, produce
from tests.support.topics import unique

CLASSIC_SESSION_MS = 1500


def open_member(broker, group: str, protocol: str) -> Consumer:
    return Consumer(member_options(broker, group, protocol))


def member_options(broker, group: str, protocol: str) -> dict[str, object]:
    """Return Kafka's options, for this process or another."""
    classic = {"session.timeout.ms": CLASSIC_SESSION_MS, "heartbeat.interval.ms": 200}
    return {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **(classic if protocol == "classic" else {}),
    }


def join_twice(broker, member: GroupMetadata, protocol: str, topic: str) -> None:
    """Join with the id of a member, as a second process with its state would. `topic` is what the second one reads."""
    with Connection(broker.bootstrap) as connection:
        if protocol == "consumer":
            join = ConsumerGroupHeartbeatRequest(
                group_id=member.group_id,
                member_id=member.member_id,
                member_epoch=0,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=[topic],
                topic_partitions=[],
            )
            joined = connection.call(join, 1)
            assert not joined.error_code, joined
            assert joined.member_epoch > member.generation_id
            return
        subscription = encode_subscription(ConsumerProtocolSubscription(topics=[topic]))
        classic = JoinGroupRequest(
            group_id=member.group_id,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id=member.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )
        response = connection.call(classic, 5)
        assert not response.error_code, response
        assert response.generation_id > member.generation_id
        sync = SyncGroupRequest(
            group_id=member.group_id, generation_id=response.generation_id, member_id=member.member_id
        )
        assert not connection.call(sync, 3).error_code


@pytest.mark.behaviour("C10")
@pytest.mark.parametrize(
    ("protocol", "heartbeat_error", "commit_error"),
    [
        ("classic", "ILLEGAL_GENERATION", "ILLEGAL_GENERATION"),
        ("consumer", "FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH"),
    ],
)
def test_a_member_whose_id_another_client_uses_is_fenced_and_joins_again(
    quick, caplog, protocol, heartbeat_error, commit_error
):
    caplog.set_level(logging.WARNING, "headrace.consumer")
    topic, other, group = fill(quick, 10, 2), fill(quick, 0, 1), unique("group")
    name, log = TopicPartition(topic, 0), Log()
    with open_member(quick, group, protocol) as consumer:
        consumer.subscribe([topic], listener=log)
        poll_until(lambda: sum(consumer.positions().values()) == 10, consumer)
        consumer.commit()
        before = consumer.group_metadata()
        join_twice(quick, before, protocol, other)
        with pytest.raises(CommitFailedError, match=commit_error):
            consumer.commit({name: 1}, SECONDS_MAX)
        poll_until(lambda: log.calls == [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])], consumer)
        assert f"removed from the group: {heartbeat_error}" in caplog.text.replace(f"group {group!r}: ", "")
        produce(quick, topic, 10, 2)
        poll_until(lambda: sum(consumer.positions().values()) == 20, consumer)
        assert consumer.committed([name])[name].offset == 5, "the commit of the fenced member"
        consumer.commit()
        assert consumer.committed([name])[name].offset == 10


PROGRAM = """
import json, sys
from headrace import CommitFailedError, Consumer, RebalanceListener

topic, options = sys.argv[1], json.loads(sys.argv[2])


def tell(event, *values):
    print(json.dumps([event, *values]), flush=True)


class Listener(RebalanceListener):
    def on_assigned(self, partitions):
        tell("assigned", len(partitions))

    def on_revoked(self, partitions):
        tell("revoked", len(partitions))

    def on_lost(self, partitions):
        tell("lost", len(partitions))


with Consumer(options) as consumer:
    consumer.subscribe([topic], listener=Listener())
    while not consumer.positions():
        consumer.poll(0.1)
    (name,) = consumer.positions()
    tell("ready")
    sys.stdin.readline()  # the process is stopped here, and continued
    try:
        consumer.commit({name: 1})
    except CommitFailedError as error:
        tell("commit failed", str(error))
    consumer.poll(0.1)
    while not consumer.positions():
        consumer.poll(0.1)
    tell("position", consumer.position(name))
"""


class Process:
    """A member in a process of its own."""

    def __init__(self, topic: str, options: dict[str, object]) -> None:
        command = [sys.executable, "-c", PROGRAM, topic, json.dumps(options)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def next_event(self) -> list[object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()[1]
        event: list[object] = json.loads(line)
        return event

    def stand_still(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=SECONDS_MAX)


@pytest.mark.behaviour("C10")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_process_that_stood_still_beyond_its_session_cannot_commit_and_joins_again(quick, protocol):
    topic, group = fill(quick, 10, 1), unique("group")
    name = TopicPartition(topic, 0)
    process = Process(topic, member_options(quick, group, protocol))
    try:
        assert [process.next_event() for _ in range(2)] == [["assigned", 1], ["ready"]]
        process.stand_still()
        with open_member(quick, group, protocol) as owner:
            owner.subscribe([topic])
            poll_until(owner.assignment, owner)  # when the session of the process has ended
            owner.commit({name: 8})
            process.go_on()
            failed, text = process.next_event()
            assert failed == "commit failed"
            assert "UNKNOWN_MEMBER_ID" in str(text)
            assert process.next_event() == ["lost", 1]
            poll_until(lambda: owner.group_metadata().generation_id > 0, owner)
        seen = [process.next_event()]
        while seen[-1][0] != "position":
            seen.append(process.next_event())
        assert ["assigned", 1] in seen
        assert seen[-1] == ["position", 8]
    finally:
        process.close()
