"""Damaged metadata is reported, deletes nothing, and can be repaired."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import HeadraceError, Producer
from headrace.broker import EmbeddedBroker, EmbeddedCluster
from headrace.errors import IllegalStateError
from tests.support.broker_commands import headrace
from tests.support.own_broker import OpenBroker
from tests.support.peers.connection import Connection
from tests.support.raw_producer import RawProducer
from tests.support.visible import visible
from tests.support.waiting import eventually

SEND_SECONDS_MAX = 20
JOURNAL = "catalog.journal"
VALUES = [b"%d" % number for number in range(5)]
QUICK = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}


def write(bootstrap: str, topic: str, values: list[bytes] = VALUES) -> None:
    with Producer(bootstrap_servers=bootstrap, max_block_ms=SEND_SECONDS_MAX * 1000) as producer:
        for value in values:
            producer.send(topic, value).result(SEND_SECONDS_MAX)


def values_in(bootstrap: str, topic: str) -> list[bytes | None]:
    with Connection(bootstrap) as connection:
        return visible(connection, topic)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the segments by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.log"))}


def position_of(path: Path, text: bytes) -> int:
    position = path.read_bytes().index(text)
    assert position > 0
    return position


def repaired(folder: Path, *arguments: object) -> dict[str, Any]:
    """Return what `headrace broker repair` would do, then run it."""
    before = (folder / JOURNAL).read_bytes() if (folder / JOURNAL).exists() else None
    dry = headrace("broker", "repair", "--data-dir", folder, *arguments, "--format", "json")
    assert dry.returncode == 1, dry.stderr
    assert ((folder / JOURNAL).read_bytes() if (folder / JOURNAL).exists() else None) == before
    done = headrace("broker", "repair", "--data-dir", folder, *arguments, "--yes", "--format", "json")
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    planned = json.loads(dry.stdout)
    assert [planned[name] for name in ("problems", "lost", "actions")] == [
        facts[name] for name in ("problems", "lost", "actions")
    ]
    if facts["copy"] is not None:
        assert Path(facts["copy"]).read_bytes() == before
    return facts


@contextmanager
def stopped_broker(folder: Path) -> Iterator[EmbeddedBroker]:
    """A broker with records in three topics, stopped."""
    broker = EmbeddedBroker(QUICK, data_dir=folder)
    try:
        broker.start()
        for topic in ("first", "orders", "last"):
            broker.create_topic(topic)
            write(broker.bootstrap, topic)
        broker.stop()
        yield broker
    finally:
        broker.close()


@pytest.mark.behaviour("B17")
def test_a_damaged_journal_line_prevents_the_start_and_one_bit_is_repaired(tmp_path: Path) -> None:
    with stopped_broker(tmp_path) as broker:
        records = files_of(tmp_path)
        flip(tmp_path / JOURNAL, position_of(tmp_path / JOURNAL, b'"orders"') + 3)
        damaged = (tmp_path / JOURNAL).read_bytes()
        for _ in range(2):
            with pytest.raises(IllegalStateError) as refused:
                broker.start()
            assert f"{tmp_path / JOURNAL} is damaged in line " in str(refused.value)
            assert f"headrace broker repair --data-dir {tmp_path}" in str(refused.value)
        assert (tmp_path / JOURNAL).read_bytes() == damaged
        assert files_of(tmp_path) == records

        facts = repaired(tmp_path)
        assert facts["lost"] == []
        broker.start()
        assert broker.status()["strays"] == []
        for topic in ("first", "orders", "last"):
            assert values_in(broker.bootstrap, topic) == VALUES


def test_repair_rejects_the_catalog_of_another_cluster(tmp_path: Path) -> None:
    for name in ("own", "other"):
        with EmbeddedBroker(data_dir=tmp_path / name):
            pass
    done = headrace("broker", "repair", "--data-dir", tmp_path / "own", "--from", tmp_path / "other", "--yes")
    assert done.returncode == 1
    assert "name brokers of this cluster" in done.stderr


@pytest.mark.behaviour("B17")
def test_repair_adds_a_lost_topic_from_its_folders(tmp_path: Path) -> None:
    with stopped_broker(tmp_path) as broker:
        partition = position_of(tmp_path / JOURNAL, b'"orders"')
        flip(tmp_path / JOURNAL, partition + 1)
        flip(tmp_path / JOURNAL, partition + 3)
        facts = repaired(tmp_path)
        assert len(facts["lost"]) == 1
        assert "its checksum does not match" in facts["lost"][0]
        (added,) = (action for action in facts["actions"] if action.startswith("add topic orders"))
        assert "1 partitions and retention.bytes=-1, retention.ms=-1; its other options are lost" in added
        broker.start()
        assert broker.status()["strays"] == []
        for topic in ("first", "orders", "last"):
            assert values_in(broker.bootstrap, topic) == VALUES
        write(broker.bootstrap, "orders", [b"more"])
        assert values_in(broker.bootstrap, "orders") == [*VALUES, b"more"]


@pytest.mark.behaviour("B17")
def test_a_broker_without_its_journal_does_not_start_on_old_records(tmp_path: Path) -> None:
    with stopped_broker(tmp_path) as broker:
        records = files_of(tmp_path)
        for damage, said in ((Path.touch, "empty"), (Path.unlink, "missing")):
            (tmp_path / JOURNAL).unlink(missing_ok=True)
            (tmp_path / JOURNAL).touch()
            damage(tmp_path / JOURNAL)
            with pytest.raises(IllegalStateError, match=f"catalog.journal is {said}, but there are folders of 3"):
                broker.start()
        assert files_of(tmp_path) == records
        (lost,) = repaired(tmp_path)["lost"]
        assert "users and passwords (SCRAM), ACLs, quotas, options of topics" in lost
        broker.start()
        for topic in ("first", "orders", "last"):
            assert values_in(broker.bootstrap, topic) == VALUES


@pytest.mark.behaviour("B17")
def test_repair_adds_topics_of_accepted_folders_without_a_topic_id(tmp_path: Path) -> None:
    with stopped_broker(tmp_path) as broker:
        (tmp_path / JOURNAL).unlink()
        shutil.copytree(tmp_path / "first-0", tmp_path / "first-1")
        for name in ("orders-0", "last-0", "first-1"):
            (tmp_path / name / "partition.metadata").unlink()
        dry = headrace("broker", "repair", "--data-dir", tmp_path, "--format", "json")
        unnamed = [text for text in json.loads(dry.stdout)["problems"] if "partition.metadata" in text]
        for text, end in zip(
            unnamed,
            (
                "the broker assigns the records to topic first. To write it: --accept first-1",
                "the folder is kept and not used. To add the topic with these records: --accept last-0",
                "the folder is kept and not used. To add the topic with these records: --accept orders-0",
            ),
            strict=True,
        ):
            assert text.endswith(end)
        facts = repaired(tmp_path, "--accept", "orders-0", "--accept", "last-0", "--accept", "first-1")
        assert any("add topic first, id" in text and "with 2 partitions" in text for text in facts["actions"])
        broker.start()
        assert len(broker.call("topics.describe", name="first")) == 2
        for topic in ("orders", "last"):
            assert values_in(broker.bootstrap, topic) == VALUES
        broker.stop()

        (tmp_path / "orders-0" / "partition.metadata").unlink()
        known = headrace("broker", "repair", "--data-dir", tmp_path, "--format", "json")
        assert known.returncode == 0
        (problem,) = json.loads(known.stdout)["problems"]
        assert problem.endswith("assigns the records to topic orders. To write it: --accept orders-0")
        repaired(tmp_path, "--accept", "orders-0")
        assert (tmp_path / "orders-0" / "partition.metadata").exists()


@pytest.mark.behaviour("B17")
def test_a_topic_in_a_torn_last_line_leaves_stray_folders(tmp_path: Path) -> None:
    with stopped_broker(tmp_path) as broker:
        lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
        number = next(number for number, line in enumerate(lines) if b'"last"' in line)
        torn = lines[number][:-1]
        (tmp_path / JOURNAL).write_bytes(b"".join([*lines[:number], torn]))
        records = files_of(tmp_path)

        broker.start()
        assert f"line {number + 1} " in broker.log_text
        assert f"{tmp_path / 'last-0'} is a stray folder: its topic is not in the catalog" in broker.log_text
        assert (tmp_path / f"{JOURNAL}.torn-1").read_bytes() == torn
        strays = [{"folder": str(tmp_path / "last-0"), "reason": "its topic is not in the catalog"}]
        assert broker.status()["strays"] == strays
        shown = headrace("broker", "status", "--data-dir", tmp_path)
        assert f"stray folder, kept: {tmp_path / 'last-0'}" in shown.stdout
        with pytest.raises(HeadraceError):
            write(broker.bootstrap, "last", [b"new"])  # it would be made by that
        with pytest.raises(HeadraceError, match="has records of another topic of that name"):
            broker.create_topic("last")
        assert values_in(broker.bootstrap, "orders") == VALUES
        broker.restart()
        assert broker.status()["strays"] == strays
        broker.stop()
        assert {name: files_of(tmp_path)[name] for name in records} == records

        repaired(tmp_path)
        broker.start()
        assert values_in(broker.bootstrap, "last") == VALUES


@pytest.mark.behaviour("B17")
def test_producer_ids_are_not_reused_when_the_journal_lost_its_last_byte(tmp_path: Path) -> None:
    with EmbeddedBroker(QUICK, data_dir=tmp_path) as broker:
        broker.create_topic("orders")
        broker.restart()
        write(broker.bootstrap, "orders")  # with the first id of the block that the last line reserves
        broker.stop()
        data = (tmp_path / JOURNAL).read_bytes()
        assert b'"producer-ids"' in data.splitlines()[-1]
        (tmp_path / JOURNAL).write_bytes(data[:-1])
        broker.start()
        write(broker.bootstrap, "orders")
        assert values_in(broker.bootstrap, "orders") == VALUES * 2


@pytest.mark.behaviour("B17")
def test_producer_ids_stay_above_those_in_the_logs_when_lines_are_lost(tmp_path: Path) -> None:
    with EmbeddedBroker(QUICK, data_dir=tmp_path) as broker:
        broker.create_topic("orders")
        write(broker.bootstrap, "orders")
        with Producer(bootstrap_servers=broker.bootstrap, transactional_id="pay") as producer:
            producer.init_transactions()
        broker.stop()
        lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
        first = next(number for number, line in enumerate(lines) if b'"producer-ids"' in line)
        (tmp_path / JOURNAL).write_bytes(b"".join(lines[:first]))
        (tmp_path / f"{JOURNAL}.end").unlink()  # an older copy, and nothing says so but the logs
        broker.start()
        write(broker.bootstrap, "orders")
        assert "the logs contain id" in broker.log_text
        assert values_in(broker.bootstrap, "orders") == VALUES * 2


@pytest.mark.behaviour("B17")
def test_a_partition_with_another_or_no_topic_id_goes_offline_and_is_kept(tmp_path: Path) -> None:
    with stopped_broker(tmp_path) as broker:
        another, unreadable = (tmp_path / name / "partition.metadata" for name in ("orders-0", "first-0"))
        data = another.read_bytes()
        another.write_bytes(data[:-6] + (b"A" if data[-6:-5] != b"A" else b"B") + data[-5:])
        unreadable.write_bytes(b"\0" * 42)
        records = files_of(tmp_path)
        broker.start()
        reasons = {Path(stray["folder"]).name: stray["reason"] for stray in broker.status()["strays"]}
        assert {*reasons} == {"first-0", "orders-0"}
        assert reasons["orders-0"].startswith("its topic id is ")
        assert reasons["first-0"].startswith("partition.metadata is damaged")
        for name, reason in reasons.items():
            assert f"ERROR   {name} is offline on this broker: {tmp_path / name}: {reason}" in broker.log_text
        with (
            Producer(bootstrap_servers=broker.bootstrap, delivery_timeout_ms=1500, request_timeout_ms=1000) as producer,
            pytest.raises(HeadraceError),
        ):
            producer.send("orders", b"x").result(SEND_SECONDS_MAX)
        assert values_in(broker.bootstrap, "last") == VALUES
        broker.stop()
        assert files_of(tmp_path) == records

        wrong = another.read_bytes()
        repaired(tmp_path, "--accept", "orders-0", "--accept", "first-0")
        assert (tmp_path / "orders-0" / "partition.metadata.before-repair-1").read_bytes() == wrong
        broker.start()
        assert broker.status()["strays"] == []
        for topic in ("orders", "first"):
            assert values_in(broker.bootstrap, topic) == VALUES


@pytest.mark.behaviour("B17")
def test_the_deletion_of_a_topic_is_completed_after_a_crash(tmp_path: Path) -> None:
    """The event is in the journal, but the folder was not removed yet: it is removed at the start."""
    with stopped_broker(tmp_path) as broker:
        shutil.copytree(tmp_path / "orders-0", tmp_path / "copy")
        broker.start()
        broker.delete_topic("orders")
        broker.stop()
        shutil.move(tmp_path / "copy", tmp_path / "orders-0")
        broker.start()
        assert broker.status()["strays"] == []
        assert not (tmp_path / "orders-0").exists()
        broker.create_topic("orders")
        write(broker.bootstrap, "orders", [b"new"])
        assert values_in(broker.bootstrap, "orders") == [b"new"]


# -- clusters --------------------------------------------------------------------------------------


def in_sync(cluster: EmbeddedCluster, *topics: str) -> bool:
    rows = [partition for topic in topics for partition in cluster.describe_topic(topic)]
    return len(rows) >= len(topics) and all(len(row["isr"]) == 3 and row["leader"] > 0 for row in rows)


@contextmanager
def cluster_with_records(folder: Path, *, separate: bool) -> Iterator[tuple[EmbeddedCluster, bytes]]:
    """Records in two topics, and the controller's journal from before the second one."""
    with EmbeddedCluster(3, QUICK, data_dir=folder, separate_controller=separate) as cluster:
        cluster.create_topic("orders", replication_factor=3)
        write(cluster.bootstrap_servers, "orders")
        older = (cluster.controller.data_dir / JOURNAL).read_bytes()
        cluster.create_topic("last", replication_factor=3)
        write(cluster.bootstrap_servers, "last")
        yield cluster, older


def catalog_problem(broker: EmbeddedBroker) -> str | None:
    problem: str | None = broker.status()["catalog"]["problem"]
    return problem


def restored(cluster: EmbeddedCluster, controller_folder: Path) -> None:
    """Give the controller the newest copy of the catalog, and check that everything is restored."""
    sources = [argument for broker in cluster.brokers[1:] for argument in ("--from", broker.data_dir)]
    facts = repaired(controller_folder, *sources)
    assert any("use the catalog of" in action for action in facts["actions"])
    cluster.controller.start()
    cluster.start()
    eventually("all in sync", lambda: in_sync(cluster, "orders", "last"))
    for topic in ("orders", "last"):
        write(cluster.bootstrap_servers, topic, [b"again"])
        leader = cluster.describe_topic(topic)[0]["leader"]
        assert values_in(cluster.broker(leader).bootstrap, topic) == [*VALUES, b"again"]
    assert all(broker.status()["catalog"]["problem"] is None for broker in cluster.brokers)
    assert all(broker.status()["strays"] == [] for broker in cluster.brokers)


@pytest.mark.behaviour("B17")
def test_followers_reject_an_older_catalog_and_the_controller_is_repaired(tmp_path: Path) -> None:
    with cluster_with_records(tmp_path, separate=True) as (cluster, older):
        controller, first, second, third = cluster.controller, *cluster.brokers
        records = {broker: files_of(broker.data_dir) for broker in cluster.brokers}
        copies = {broker: (broker.data_dir / JOURNAL).read_bytes() for broker in cluster.brokers}
        third.stop()
        controller.kill()
        (controller.data_dir / JOURNAL).write_bytes(older)
        controller.start()
        third.start()  # also one that starts refuses it
        for broker in cluster.brokers:
            eventually("it says so", functools.partial(catalog_problem, broker))
            assert "ERROR   the controller's catalog is rejected: the controller's catalog is older" in broker.log_text
            assert broker.describe_topic("last"), "it has forgotten the topic"
            kept = files_of(broker.data_dir)
            assert {name: kept[name] for name in records[broker]} == records[broker]
            assert (broker.data_dir / JOURNAL).read_bytes().startswith(copies[broker][:200])
        shown = headrace("broker", "status", "--data-dir", second.data_dir)
        assert "the controller's catalog is rejected" in shown.stdout
        leader = first.describe_topic("last")[0]["leader"]
        if leader != third.node_id:
            assert values_in(cluster.broker(leader).bootstrap, "last") == VALUES  # they serve what they can
        controller.stop()
        restored(cluster, controller.data_dir)


@pytest.mark.behaviour("B17")
def test_repair_restores_the_catalog_of_a_separate_controller(tmp_path: Path) -> None:
    with cluster_with_records(tmp_path, separate=True) as (cluster, _):
        cluster.controller.kill()
        path = cluster.controller.data_dir / JOURNAL
        flip(path, position_of(path, b'"orders"') + 3)
        with pytest.raises(IllegalStateError, match="is damaged in line"):
            cluster.controller.start()
        shutil.rmtree(cluster.controller.data_dir)
        restored(cluster, cluster.controller.data_dir)


@pytest.mark.behaviour("B17")
def test_repair_restores_a_controller_that_lost_its_disk(tmp_path: Path) -> None:
    with cluster_with_records(tmp_path, separate=False) as (cluster, _):
        cluster.controller.kill()
        shutil.rmtree(cluster.controller.data_dir)
        restored(cluster, cluster.controller.data_dir)


@pytest.mark.behaviour("B17")
def test_a_replica_with_a_damaged_topic_id_is_offline_and_others_serve_it(tmp_path: Path) -> None:
    with cluster_with_records(tmp_path, separate=True) as (cluster, _):
        damaged = cluster.broker(cluster.describe_topic("orders")[0]["leader"])
        damaged.kill()
        flip(damaged.data_dir / "orders-0" / "partition.metadata", -6)
        records = files_of(damaged.data_dir)["orders-0/00000000000000000000.log"]
        damaged.start()
        assert [stray["folder"] for stray in damaged.status()["strays"]] == [str(damaged.data_dir / "orders-0")]
        write(cluster.bootstrap_servers, "orders", [b"more"])
        (partition,) = cluster.describe_topic("orders")
        assert partition["leader"] != damaged.node_id
        assert values_in(cluster.broker(partition["leader"]).bootstrap, "orders") == [*VALUES, b"more"]
        assert files_of(damaged.data_dir)["orders-0/00000000000000000000.log"] == records
        damaged.stop()
        repaired(damaged.data_dir, "--accept", "orders-0")
        damaged.start()
        eventually("all in sync", lambda: in_sync(cluster, "orders", "last"))
        assert files_of(damaged.data_dir)["orders-0/00000000000000000000.log"].startswith(records)


@pytest.mark.behaviour("B17")
def test_a_topic_deleted_while_a_broker_was_down_is_deleted_there_too(tmp_path: Path) -> None:
    with cluster_with_records(tmp_path, separate=True) as (cluster, _):
        away = cluster.brokers[2]
        away.stop()
        cluster.controller.delete_topic("last")
        cluster.create_topic("last", replication_factor=1)
        away.start()
        eventually("it is gone", lambda: not any(away.data_dir.glob("last-0/*.log")) or in_sync(cluster, "orders"))
        assert away.status()["strays"] == []
        assert (away.data_dir / "orders-0").exists()


def test_a_failed_start_does_not_hide_a_missing_log(tmp_path: Path) -> None:
    with stopped_broker(tmp_path) as broker:
        shutil.rmtree(tmp_path / "orders-0")
        with pytest.raises(HeadraceError, match=r"authorizer\.class\.name"):
            EmbeddedBroker({"authorizer.class.name": "Nobody"}, data_dir=tmp_path).start()
        broker.start()
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            sent = producer.send("orders", b"next").result(SEND_SECONDS_MAX)
        assert sent.offset == len(VALUES)  # none is given out twice


@pytest.mark.behaviour("B17")
def test_a_truncated_transaction_log_reuses_no_producer_epoch(tmp_path):
    options = {"transaction_state_log_num_partitions": 1}
    state = tmp_path / "data" / "__transaction_state-0" / f"{0:020d}.log"
    given = set()

    def init(broker: OpenBroker, transactional_id: str = "ledger") -> tuple[int, int]:
        with Connection(broker.bootstrap) as connection:
            producer = RawProducer(connection, "topic", transactional_id)
            assert producer.init().error_code == 0
            return producer.producer_id, producer.epoch

    with OpenBroker(tmp_path / "data", **options) as broker:
        given |= {init(broker), init(broker, "later")}
        older = state.read_bytes()
        given |= {init(broker, name) for name in ("ledger", "later") for _ in range(3)}
    assert len(given) == 8
    state.write_bytes(older)
    with OpenBroker(tmp_path / "data", **options) as broker:
        first = init(broker)
        assert first not in given
    with OpenBroker(tmp_path / "data", **options) as broker:
        assert init(broker, "later") not in given
        assert init(broker) == (first[0], first[1] + 1)  # it has an id from after the loss
