"""Kafka's command line tools: their output depends on the responses of the broker."""

from __future__ import annotations

import json
from functools import partial

from headrace.wire.layout import Record
from tests.support.hanging import plant_hanging
from tests.support.peers import librdkafka
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

TIME = 1_700_000_000_000


def fill(broker, topic, count=5):
    librdkafka.produce(broker.bootstrap, topic, [Record(n, TIME + n, None, b"%d" % n, ()) for n in range(count)])


def cells(lines):
    """The words of each line of a table."""
    return [line.split() for line in lines if line.strip()]


def test_topic_command_creates_describes_alters_and_deletes(either, java_client):
    topic = unique("by-command")

    def command(*args):
        return java_client.tool("TopicCommand", "--bootstrap-server", either.bootstrap, *args)

    made = command("--create", "--topic", topic, "--partitions", 2, "--config", "retention.ms=12345")
    assert made.out.strip() == f"Created topic {topic}."
    head, *partitions = eventually("two partitions", lambda: described(command, topic, 2))
    assert "PartitionCount: 2" in head
    assert "ReplicationFactor: 1" in head
    assert "retention.ms=12345" in head
    assert all(f"Partition: {n}\tLeader: 1\tReplicas: 1\tIsr: 1" in line for n, line in enumerate(partitions))
    command("--alter", "--topic", topic, "--partitions", 3)
    eventually("three partitions", lambda: described(command, topic, 3))
    assert topic in command("--list").lines
    command("--delete", "--topic", topic)
    eventually("no topic", lambda: topic not in command("--list").lines)


def described(command, topic, count):
    lines = command("--describe", "--topic", topic).lines
    return lines if len(lines) == count + 1 else None


def test_the_console_consumer_prints_what_the_console_producer_read(either, java_client):
    topic = new_topic(either, "console")
    server = ("--bootstrap-server", either.bootstrap, "--topic", topic)
    java_client.tool(
        *("ConsoleProducer", *server, "--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
        *("--compression-codec", "zstd"),
        stdin="a:one\nb:zwei\n",
    )
    read = java_client.tool(
        *("consumer.ConsoleConsumer", *server, "--from-beginning", "--max-messages", 2, "--timeout-ms", 20_000),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"),
    )
    assert read.lines == ["Offset:0\ta\tone", "Offset:1\tb\tzwei"]


def test_the_verifiable_producer_and_consumer_agree(either, java_client):
    topic = new_topic(either, "verifiable")
    server = ("--bootstrap-server", either.bootstrap, "--topic", topic)
    sent = java_client.tool_alone("VerifiableProducer", *server, "--max-messages", 30, "--acks", -1)
    events = [json.loads(line) for line in sent.lines]
    assert [event["offset"] for event in events if event["name"] == "producer_send_success"] == list(range(30))
    assert (events[-1]["name"], events[-1]["acked"], events[-1]["sent"]) == ("tool_data", 30, 30)
    read = java_client.tool_alone(
        *("VerifiableConsumer", *server, "--group-id", unique("verifiable"), "--max-messages", 30),
        *("--reset-policy", "earliest", "--session-timeout", 10_000),
    )
    heard = [json.loads(line) for line in read.lines]
    assert sum(event["count"] for event in heard if event["name"] == "records_consumed") == 30
    (committed,) = [event for event in heard if event["name"] == "offsets_committed"][-1]["offsets"]
    assert committed == {"topic": topic, "partition": 0, "offset": 30}


def test_the_performance_tools_finish(either, java_client):
    topic = new_topic(either, "performance", 2)
    sent = java_client.tool(
        *("ProducerPerformance", "--topic", topic, "--num-records", 2000, "--record-size", 100, "--throughput", -1),
        *("--producer-props", f"bootstrap.servers={either.bootstrap}", "compression.type=lz4", "batch.size=4000"),
    )
    assert sent.lines[-1].startswith("2000 records sent, ")
    transactional = java_client.tool(
        *("ProducerPerformance", "--topic", topic, "--num-records", 1000, "--record-size", 100, "--throughput", -1),
        *("--transaction-duration-ms", 50, "--transactional-id", unique("performance")),
        *("--producer-props", f"bootstrap.servers={either.bootstrap}"),
    )
    assert transactional.lines[-1].startswith("1000 records sent, ")
    read = java_client.tool(
        *("ConsumerPerformance", "--bootstrap-server", either.bootstrap, "--topic", topic),
        *("--messages", 3000, "--hide-header", "--timeout", 20_000),
    )
    assert int(read.lines[-1].split(", ")[4]) >= 3000


def test_transactions_command_finds_a_hanging_transaction_and_aborts_it(either, java_client):
    topic, transactional_id = new_topic(either, "hanging"), unique("hanging")

    def command(*args):
        return java_client.tool("TransactionsCommand", "--bootstrap-server", either.bootstrap, *args)

    open_id = unique("open")
    producer = librdkafka.transactional(either.bootstrap, open_id)
    producer.begin_transaction()
    other = new_topic(either, "open")
    librdkafka.append(producer, other, [Record(0, TIME, None, b"open", ())])
    head, *listed = cells(command("list").lines)
    assert head == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
    (row,) = [row for row in listed if row[0] == open_id]
    assert (row[1], row[3]) == ("1", "Ongoing")
    _, described = cells(command("describe", "--transactional-id", open_id).lines)
    assert (described[0], described[4], described[-1]) == ("1", "Ongoing", f"{other}-0")
    _, seen = cells(command("describe-producers", "--topic", other, "--partition", 0).lines)
    assert (seen[0], seen[-1]) == (row[2], "0")

    producer_id, epoch = plant_hanging(either.bootstrap, topic, transactional_id)
    hanging = ("find-hanging", "--broker-id", 1, "--max-transaction-timeout", 0)
    _, *rows = cells(command(*hanging).lines)
    assert [row[:4] for row in rows if row[0] in (topic, other)] == [[topic, "0", str(producer_id), str(epoch)]]
    command("abort", "--topic", topic, "--partition", 0, "--start-offset", 0)
    assert topic not in command(*hanging).out
    assert librdkafka.consume_to_end(either.bootstrap, topic, isolation="read_committed") == []
    assert [record.value for record in librdkafka.consume(either.bootstrap, topic, 1)] == [b"hanging"]

    command("forceTerminateTransaction", "--transactionalId", open_id)
    assert librdkafka.consume_to_end(either.bootstrap, other, isolation="read_committed") == []


def test_offsets_of_partitions_and_groups_are_shown_and_reset(either, java_client):
    topic, group = new_topic(either, "offsets"), unique("group")
    fill(either, topic)
    shown = java_client.tool("GetOffsetShell", "--bootstrap-server", either.bootstrap, "--topic", topic)
    assert shown.out.strip() == f"{topic}:0:5"
    early = java_client.tool(
        "GetOffsetShell", "--bootstrap-server", either.bootstrap, "--topic", topic, "--time", "earliest"
    )
    assert early.out.strip() == f"{topic}:0:0"

    def groups(*args):
        return java_client.tool(
            "consumer.group.ConsumerGroupCommand", "--bootstrap-server", either.bootstrap, "--group", group, *args
        )

    reset = ("--reset-offsets", "--topic", topic, "--execute")
    assert cells(groups(*reset, "--to-offset", 2).lines)[-1] == [group, topic, "0", "2"]
    assert cells(groups("--describe").lines)[-1][:6] == [group, topic, "0", "2", "5", "3"]
    assert cells(groups(*reset, "--shift-by", 1).lines)[-1] == [group, topic, "0", "3"]
    assert cells(groups(*reset, "--to-datetime", "2023-11-14T22:13:20.001Z").lines)[-1] == [group, topic, "0", "1"]
    assert cells(groups("--describe", "--state").lines)[-1][-2:] == ["Empty", "0"]
    assert cells(groups("--delete-offsets", "--topic", topic).lines)[-1] == [topic, "0", "Successful"]
    assert "successful" in groups("--delete").out
    listed = java_client.tool("GroupsCommand", "--bootstrap-server", either.bootstrap, "--list")
    assert group not in listed.out


def test_config_command_changes_topics_clients_and_users(either, java_client):
    topic, name = new_topic(either, "config"), unique("someone")

    def command(*args):
        return java_client.tool("kafka.admin.ConfigCommand", "--bootstrap-server", either.bootstrap, *args).out

    ofs = ("--entity-type", "topics", "--entity-name", topic)
    assert "Completed updating config" in command(
        "--alter", *ofs, "--add-config", "flush.messages=7,retention.ms=99999"
    )
    eventually("the options", lambda: "flush.messages=7 " in command("--describe", *ofs))
    everything = command("--describe", "--all", *ofs)
    assert "retention.ms=99999 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=99999" in everything
    assert "segment.bytes=1073741824" in everything
    command("--alter", *ofs, "--delete-config", "flush.messages")
    eventually("one less", lambda: "flush.messages" not in command("--describe", *ofs))

    client = ("--entity-type", "clients", "--entity-name", name)
    command("--alter", *client, "--add-config", "producer_byte_rate=1234567")
    eventually("the quota", lambda: "producer_byte_rate=1234567.0" in command("--describe", *client))
    command("--alter", *client, "--delete-config", "producer_byte_rate")

    user = ("--entity-type", "users", "--entity-name", name)
    command("--alter", *user, "--add-config", "SCRAM-SHA-256=[iterations=4096,password=secret]")
    eventually("the user", lambda: "SCRAM-SHA-256=iterations=4096" in command("--describe", *user))
    command("--alter", *user, "--delete-config", "SCRAM-SHA-256")

    assert "node.id=1 " in command("--describe", "--all", "--entity-type", "brokers", "--entity-name", 1)


def test_config_command_changes_options_of_a_broker_and_of_all(either, java_client):
    def command(*args):
        return java_client.tool(
            *("kafka.admin.ConfigCommand", "--bootstrap-server", either.bootstrap, "--entity-type", "brokers", *args),
            may_fail=True,
        )

    def has(text, *entity):
        return text in command("--describe", *entity).out

    def lacks(text, *entity):
        return not has(text, *entity)

    this, every = ("--entity-name", 1), ("--entity-default",)
    assert "min.insync.replicas=1 " in command("--describe", *every).out  # KIP-966: always set on the cluster
    for entity, source in ((this, "DYNAMIC_BROKER_CONFIG"), (every, "DYNAMIC_DEFAULT_BROKER_CONFIG")):
        assert command("--alter", *entity, "--add-config", "log.cleaner.threads=2,max.connections=4000").code == 0
        text = f"synonyms={{{source}:max.connections=4000"
        eventually("the option", partial(has, text, *entity))
        assert command("--alter", *entity, "--delete-config", "log.cleaner.threads,max.connections").code == 0
        eventually("its end", partial(lacks, text, *entity))
    refused = command("--alter", *this, "--add-config", "node.id=7")
    assert refused.code == 1
    assert "node.id" in refused.out + refused.err


def test_the_smaller_tools_work(either, java_client, tmp_path):
    topic = new_topic(either, "small")
    fill(either, topic)
    server = ("--bootstrap-server", either.bootstrap)
    versions = java_client.tool("BrokerApiVersionsCommand", *server).out
    assert "Produce(0): 0 to 13 [usable: 13]" in versions
    assert "UNSUPPORTED" not in "".join(line for line in versions.splitlines() if "(18)" in line)
    folders = java_client.tool("LogDirsCommand", *server, "--describe", "--topic-list", topic).lines[-1]
    (partition,) = json.loads(folders)["brokers"][0]["logDirs"][0]["partitions"]
    assert partition["partition"] == f"{topic}-0"
    assert partition["size"] > 0
    assert "Cluster ID: " in java_client.tool("ClusterTool", "cluster-id", *server).out
    features = java_client.tool("FeatureCommand", *server, "describe").out
    assert "Feature: transaction.version" in features
    offsets_file = tmp_path / "offsets.json"
    offsets_file.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 3}]}))
    deleted = java_client.tool("DeleteRecordsCommand", *server, "--offset-json-file", offsets_file)
    assert "low_watermark: 3" in deleted.out
    elected = java_client.tool(
        *("LeaderElectionCommand", *server, "--election-type", "preferred", "--topic", topic, "--partition", 0)
    )
    assert f"{topic}-0" in elected.out + elected.err


def test_the_message_copier_copies_in_transactions(either, java_client):
    source, target, group = new_topic(either, "from"), new_topic(either, "to"), unique("copier")
    fill(either, source, 20)
    copied = java_client.tool_alone(
        *("TransactionalMessageCopier", "--broker-list", either.bootstrap, "--consumer-group", group),
        *("--input-topic", source, "--input-partition", 0, "--output-topic", target, "--transactional-id", group),
        *("--max-messages", 20, "--transaction-size", 7, "--enable-random-aborts"),
    )
    assert json.loads(copied.lines[-1])["remaining"] == 0
    values = [record.value for record in librdkafka.consume_to_end(either.bootstrap, target)]
    assert values == [b"%d" % n for n in range(20)]


def test_kafkas_formatters_read_the_records_of_coordinators(either, java_client):
    """The state of groups and transactions lies in internal topics, in the formats that Kafka has for it."""
    topic, target = new_topic(either, "state"), new_topic(either, "state-target")
    group, transactional_id = unique("state-group"), unique("state-txn")
    fill(either, topic)
    java_client.transform(either.bootstrap, topic, target, group, transactional_id, 5)

    def values(internal, formatter, **key):
        server = ("--bootstrap-server", either.bootstrap, "--topic", internal, "--from-beginning")
        run = java_client.tool(
            *("consumer.ConsoleConsumer", *server, "--timeout-ms", 1000),
            *("--formatter", f"org.apache.kafka.tools.consumer.{formatter}"),
            may_fail=True,  # it times out waiting for more, which it reports as an error
        )
        return [entry["value"]["data"] for entry in entries(run.out) if key.items() <= entry["key"]["data"].items()]

    offsets = values("__consumer_offsets", "OffsetsMessageFormatter", group=group, topic=topic, partition=0)
    # Records of both attempts: the markers decide.
    assert [entry["offset"] for entry in offsets] == [5, 5]
    groups = values("__consumer_offsets", "GroupMetadataMessageFormatter", group=group)
    assert [len(entry["members"]) for entry in groups if entry["generation"] == 1] == [1]
    assert (groups[-1]["protocolType"], groups[-1]["members"]) == ("consumer", [])
    states = values("__transaction_state", "TransactionLogMessageFormatter", transactionalId=transactional_id)
    empty, ongoing, prepare_commit, prepare_abort, complete_commit, complete_abort = range(6)
    assert [(state["transactionStatus"], state["producerEpoch"]) for state in states] == [
        *((empty, 0), (ongoing, 0), (ongoing, 0), (prepare_abort, 1), (complete_abort, 1)),
        *((ongoing, 1), (ongoing, 1), (prepare_commit, 2), (complete_commit, 2)),
    ]
    assert all({target} <= {part["topic"] for part in states[n]["transactionPartitions"]} for n in (1, 2, 3, 5, 6, 7))
    assert {state["clientTransactionVersion"] for state in states[1:]} == {2}


def entries(printed):
    """Return the consecutive JSON objects in a text."""
    decoder, entries = json.JSONDecoder(), []
    while printed := printed.lstrip():
        entry, end = decoder.raw_decode(printed)
        entries.append(entry)
        printed = printed[end:]
    return entries


def test_kafkas_dump_log_tool_finds_the_files_valid(either, java_client):
    """headrace writes segments, indexes and snapshots in Kafka's formats, which Kafka's tool can check."""
    topic = new_topic(either, "dumped", internal_segment_bytes=2000, index_interval_bytes=200)
    producer = librdkafka.transactional(either.bootstrap, unique("dumped"))
    for n in range(20):
        producer.begin_transaction()
        librdkafka.append(producer, topic, [Record(n, TIME + n, b"key", b"%0200d" % n, ())])
        (producer.abort_transaction if n % 5 == 4 else producer.commit_transaction)(librdkafka.SECONDS_MAX)
    (folder,) = data_folder(either).rglob(f"{topic}-0")

    def dump(kind):
        files = ",".join(str(file) for file in sorted(folder.glob(f"*.{kind}")))
        run = java_client.tool("DumpLogSegments", "--deep-iteration", "--files", files)
        assert "mismatch" not in (run.out + run.err).lower()
        return [line for line in run.lines if not line.startswith("Dumping")]

    def all_batches():
        lines = [line for line in dump("log") if line.startswith("baseOffset:")]
        return lines if len(lines) == 40 else None  # each with its marker; the last marker may be written later

    batches = eventually("the last marker", all_batches)
    assert all(line.endswith("isvalid: true") for line in batches)
    assert "offset: 3 position: 351" in dump("index")
    assert len(dump("timeindex")) > 10
    assert len(dump("snapshot")) == len(list(folder.glob("*.log"))) - 1
    aborted = [dict(zip(*[iter(line.replace(":", "").split())] * 2, strict=True)) for line in dump("txnindex")]
    spans = [[int(entry[name]) for name in ("firstOffset", "lastOffset", "lastStableOffset")] for entry in aborted]
    assert spans[:3] == [[8, 9, 10], [18, 19, 20], [28, 29, 30]]


def data_folder(broker):
    return getattr(broker, "embedded", broker).data_dir


def test_java_reads_with_the_consumer_protocol_and_its_tools_show_the_group(either, java_client):
    topic, group = new_topic(either, "modern"), unique("modern-group")
    fill(either, topic)
    server = ("--bootstrap-server", either.bootstrap)
    read = java_client.tool(
        *("consumer.ConsoleConsumer", *server, "--topic", topic, "--from-beginning", "--max-messages", 5),
        *("--timeout-ms", 20_000, "--group", group, "--command-property", "group.protocol=consumer"),
    )
    assert len(read.lines) == 5

    def groups(*args):
        return java_client.tool("consumer.group.ConsumerGroupCommand", *server, "--group", group, *args)

    assert cells(groups("--describe").lines)[-1][:6] == [group, topic, "0", "5", "5", "0"]
    assert cells(groups("--describe", "--state").lines)[-1][-2:] == ["Empty", "0"]
    listed = cells(java_client.tool("GroupsCommand", *server, "--list", "--consumer").lines)
    assert [group, "Consumer", "consumer"] in listed

    def configs(*args):
        entity = ("--entity-type", "groups", "--entity-name", group)
        return java_client.tool("kafka.admin.ConfigCommand", *server, *entity, *args)

    configs("--alter", "--add-config", "consumer.heartbeat.interval.ms=6000,consumer.session.timeout.ms=50000")
    eventually("the options", lambda: "consumer.heartbeat.interval.ms=6000" in configs("--describe").out)
    read = java_client.tool_alone(
        *("VerifiableConsumer", *server, "--topic", topic, "--group-id", unique("verifiable"), "--max-messages", 5),
        *("--reset-policy", "earliest", "--group-protocol", "consumer"),
    )
    events = [json.loads(line) for line in read.lines]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 5
    assert "successful" in groups("--delete").out


def test_client_metrics_command_changes_lists_and_deletes_subscriptions(either, java_client):
    name = unique("subscription")

    def command(*args):
        return java_client.tool("ClientMetricsCommand", "--bootstrap-server", either.bootstrap, *args)

    command("--alter", "--name", name, "--metrics", "org.apache.kafka.producer.", "--interval", 30_000)
    eventually("the subscription", lambda: name in command("--list").lines)
    command("--alter", "--name", name, "--match", "client_id=app-.*")

    def values():
        lines = command("--describe", "--name", name).lines
        return {key: value for key, _, value in (line.strip().partition("=") for line in lines[1:])}

    expected = {"interval.ms": "30000", "match": "client_id=app-.*", "metrics": "org.apache.kafka.producer."}
    eventually("all options", lambda: expected.items() <= values().items())
    invalid = java_client.tool(
        *("ClientMetricsCommand", "--bootstrap-server", either.bootstrap),
        *("--alter", "--name", name, "--match", "bogus=1"),
        may_fail=True,
    )
    assert "bogus" in invalid.out + invalid.err
    command("--delete", "--name", name)
    eventually("no subscription", lambda: name not in command("--list").lines)
