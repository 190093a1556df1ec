"""Missing topics: the error that names the option, and the option topic.create, on both brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient, ConfigResource, NewTopic, ResourceKind
from headrace.client.admin.topics import TopicAdmin
from headrace.client.blocking import BlockingClient
from headrace.errors import TopicExistsError
from headrace.spark import sink, worker
from headrace.spark.columns import Limits
from headrace.spark.decisions import Decision
from headrace.spark.errors import NotDecidedError, PlanError, SinkError
from headrace.spark.ledger import Ledger
from headrace.spark.sink_options import SinkOptions
from headrace.spark.task_writer import Report, TaskAttempt, TaskWriter, merged
from headrace.spark.topic_creation import TopicCreation
from headrace.wire.api.access import AclCreation, CreateAclsRequest
from tests.support.crashes import committed
from tests.support.peers.broker import Broker
from tests.support.peers.connection import Connection
from tests.support.peers.embedded import OwnBroker
from tests.support.topics import new_topic, unique

ROWS = StructType().add("value", BinaryType())
# Numbers of the protocol for ACLs: resources, patterns, operations, permissions.
TOPIC, CLUSTER, LITERAL, PREFIXED, WRITE, CREATE_OPERATION, DENY, ALLOW = 2, 4, 3, 4, 4, 5, 2, 3
CREATE = {"topic.create": "true", "topic.partitions": "3", "topic.config.retention.ms": "86400000"}
PLAN_SECONDS_MAX = 10.0


@pytest.fixture(scope="module")
def strict() -> Iterator[Broker]:
    """A broker that creates no topics on its own, and has ACLs: what none of them names is allowed."""
    embedded = EmbeddedBroker(
        {
            "auto.create.topics.enable": False,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": True,
            "transaction.state.log.num.partitions": 4,
        }
    )
    broker = OwnBroker(embedded)
    try:
        embedded.start()
        yield broker
    finally:
        broker.remove()


def options_of(broker: Broker, **given: str) -> SinkOptions:
    named = {name.replace("__", "."): value for name, value in given.items()}
    return SinkOptions.parse({"kafka.bootstrap.servers": broker.bootstrap, **named}, is_stream=False)


def described(broker: Broker, topic: str) -> tuple[int, str | None]:
    """Return the number of partitions and retention.ms of a topic."""
    resource = ConfigResource(ResourceKind.TOPIC, topic)
    with AdminClient(broker.bootstrap) as admin:
        partitions = admin.describe_topics([topic])[topic].partitions
        return len(partitions), admin.describe_configs([resource])[resource]["retention.ms"].value


def run_task(options: SinkOptions, topics: list[str], value: str = "v") -> Report:
    """Write one row to each topic."""
    rows = pa.RecordBatch.from_pydict({"value": pa.array([value.encode()] * len(topics)), "topic": pa.array(topics)})
    task = TaskAttempt(options.sink_id or unique("sink"), "query", "run", 0, 0, 0)
    return TaskWriter(options, task, Limits(1_000_000, {})).write(iter([rows]))


def decide(options: SinkOptions, report: Report) -> None:
    """Write the inline rows of a task and their decision, as a commit does."""
    with BlockingClient(options.client_settings()) as client:
        ledger = Ledger(options, report.task.sink, client)
        try:
            ledger.open()
            ledger.write(Decision(report.task.sink, "query", "run", 0, ()), merged([report]))
        finally:
            ledger.close()


def discard_producer(options: SinkOptions) -> None:
    with pytest.raises(KeyError), worker.producer_of(options):
        raise KeyError


def values_in(broker: Broker, topic: str) -> list[bytes | None]:
    return [value for records in committed(broker.bootstrap, topic).values() for _, value in records]


def acl(kind: int, name: str, pattern: int, operation: int, permission: int) -> AclCreation:
    return AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=pattern,
        principal="User:ANONYMOUS",
        host="*",
        operation=operation,
        permission_type=permission,
    )


def test_the_error_of_a_missing_topic_names_the_option(either):
    started = time.monotonic()
    with pytest.raises(
        PlanError, match=r"'nowhere' does not exist .*: create it, correct the name, or set topic\.crea"
    ):
        sink.plan(options_of(either, topic="nowhere"), ROWS)
    assert time.monotonic() - started < PLAN_SECONDS_MAX


def test_planning_creates_the_topics_of_options_with_their_settings(either):
    topic, dead = unique("planned"), unique("dead")
    given = {"on.bad.row": "dead-letter", "dead.letter.topic": dead, **CREATE}
    limits = sink.plan(options_of(either, topic=topic, **given), ROWS)
    assert limits.partition_counts == {topic: 3, dead: 3}
    assert described(either, topic) == described(either, dead) == (3, "86400000")


def test_planning_leaves_topics_that_exist_as_they_are(either):
    topic = new_topic(either, "present", partitions=2)
    limits = sink.plan(options_of(either, topic=topic, **CREATE), ROWS)
    assert limits.partition_counts == {topic: 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topic.replication.factor": "9"}, r"topic\.create=true: .*; change topic\.replication\.factor"),
        ({"topic.config.retention.sm": "1"}, r"topic\.create=true: .*retention\.sm.*; change topic\.config\.\*"),
    ],
)
def test_the_error_of_wrong_settings_names_the_option_to_change(either, given, message):
    with pytest.raises(PlanError, match=message):
        sink.plan(options_of(either, topic=unique("wrong"), topic__create="true", **given), ROWS)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_task_creates_the_topics_that_its_rows_name(either, delivery):
    topics = [unique("row"), unique("row"), new_topic(either, "old")]
    options = options_of(either, delivery=delivery, commit__mode="parallel", **CREATE)
    report = run_task(options, topics)
    assert [described(either, topic)[0] for topic in topics[:2]] == [3, 3]
    if delivery == "exactly-once":
        assert report.transaction is not None
        assert {span.topic for span in report.transaction.spans} == set(topics)
    else:
        assert [values_in(either, topic) for topic in topics] == [[b"v"]] * 3
    discard_producer(options)


def test_a_commit_creates_the_topics_that_inline_rows_name(either):
    topic = unique("inline")
    options = options_of(either, sink__id=unique("sink"), decision__topic=unique("decisions"), **CREATE)
    report = run_task(options, [topic])
    assert report.inline
    decide(options, report)
    assert described(either, topic) == (3, "86400000")
    assert values_in(either, topic) == [b"v"]


def test_the_error_of_a_missing_topic_that_a_row_names(strict):
    options = options_of(strict, commit__mode="parallel", kafka__max__block__ms="500")
    with pytest.raises(SinkError, match=r"rows to topic 'not-there' cannot be sent: .* or set topic\.create=true"):
        run_task(options, ["not-there"])
    inline = options_of(strict, kafka__max__block__ms="500", decision__topic=unique("decisions"))
    report = run_task(inline, ["not-there"])
    with pytest.raises(NotDecidedError, match=r"rows to topic 'not-there' .* or set topic\.create=true"):
        decide(inline, report)


def test_without_permission_the_error_names_operation_and_remedy(strict):
    acls = [
        acl(CLUSTER, "kafka-cluster", LITERAL, CREATE_OPERATION, DENY),
        acl(TOPIC, "denied-", PREFIXED, CREATE_OPERATION, DENY),
        acl(TOPIC, "denied-", PREFIXED, WRITE, ALLOW),
    ]
    with Connection(strict.bootstrap) as connection:
        response = connection.call(CreateAclsRequest(creations=acls), 2)
    assert [result.error_code for result in response.results] == [0, 0, 0]
    topic = unique("denied-")
    expected = rf"not authorized to create topic '{topic}' .*: allow the operation Create on .*, or create it"
    with pytest.raises(PlanError, match=expected):
        sink.plan(options_of(strict, topic=topic, **CREATE), ROWS)
    with pytest.raises(SinkError, match=expected):
        run_task(options_of(strict, commit__mode="parallel", **CREATE), [topic])


def test_clients_that_create_a_topic_at_the_same_time_all_succeed(either):
    topic, creation, results = unique("race"), TopicCreation(partitions=2), []
    start = threading.Barrier(4)

    def create() -> None:
        with BlockingClient(options_of(either, topic=topic).client_settings()) as client:
            start.wait(10)
            results.append(len(creation.ensure(client, [topic])[topic].partitions))

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [2, 2, 2, 2]
    with AdminClient(either.bootstrap) as admin, pytest.raises(TopicExistsError):
        admin.create_topics([NewTopic(topic)])


def test_options_without_effect_are_warned_of_once_for_all_batches_of_a_query(headrace_broker, caplog):
    topic = new_topic(headrace_broker, "warned")
    for age_ms in ("5000", "6000"):  # planned again, as in another process
        given = {"kafka.group.id": "g", "kafka.check.crcs": "true", "kafka.metadata.max.age.ms": age_ms}
        sink.plan(options_of(headrace_broker, topic=topic, **given), ROWS)
    warnings = [record.getMessage() for record in caplog.records if "no effect" in record.getMessage()]
    assert warnings == [
        "2 options have no effect: kafka.check.crcs: it is an option of consumers, and the sink writes; "
        "kafka.group.id: it is an option of consumers, and the sink writes"
    ]


def test_an_existing_topic_without_a_leader_does_not_delay_planning(strict, monkeypatch):
    topic = new_topic(strict, "leaderless", 2)
    describe = TopicAdmin.describe_topics

    def without_leader(admin, names):
        return {
            name: replace(topic, partitions=tuple(part._replace(leader=-1) for part in topic.partitions))
            for name, topic in describe(admin, names).items()
        }

    monkeypatch.setattr(TopicAdmin, "describe_topics", without_leader)
    options = options_of(strict, topic=topic, topic__create="true")
    started = time.monotonic()
    assert sink.plan(options, ROWS).partition_counts == {topic: 2}
    assert time.monotonic() - started < PLAN_SECONDS_MAX
