"""headrace broker start --brokers and --join."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from headrace import Producer
from headrace.broker import control
from headrace.broker.ports import free_port, is_taken
from headrace.errors import ConfigError, IllegalStateError
from headrace.wire.api.metadata import MetadataRequest
from tests.support.broker_commands import COMMAND_SECONDS_MAX, headrace, running
from tests.support.peers.connection import Connection
from tests.support.waiting import eventually


def known_brokers(bootstrap):
    with Connection(bootstrap) as connection:
        response = connection.call(MetadataRequest(topics=[]), 9)
        return {node.node_id for node in response.brokers}


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_cluster_is_started_shown_joined_and_stopped(tmp_path):
    data_dir = tmp_path / "data"
    options = ("--listen", "127.0.0.1:0", "--data-dir", data_dir, "--format", "json")
    with running("--brokers", 2, *options) as (process, line):
        ready = json.loads(line)
        first, second = ready["bootstrap"].split(",")
        assert known_brokers(first) == known_brokers(second) == {1, 2}
        with Producer(bootstrap_servers=second) as producer:
            assert producer.send("made-by-sending", b"x").result(20).offset == 0

        joined = ("--join", first, "--node-id", 3, "--data-dir", tmp_path / "third", "--format", "json")
        with running(*joined) as (third, third_line):
            assert known_brokers(json.loads(third_line)["bootstrap"]) == {1, 2, 3}
            third.terminate()
            assert third.wait(COMMAND_SECONDS_MAX) == 0
            assert known_brokers(first) == {1, 2}

        facts = json.loads(headrace("broker", "status", "--data-dir", data_dir, "--format", "json").stdout)
        assert (facts["bootstrap"], facts["pid"], facts["topics"]) == (ready["bootstrap"], process.pid, 1)
        assert [(row["node_id"], row["alive"]) for row in facts["brokers"]] == [(1, True), (2, True)]
        assert (facts["controller"]["node_id"], facts["controller"]["alive"]) == (0, True)
        assert facts["controller"]["bootstrap"] == ready["listeners"]["controller"]
        assert facts["strays"] == []
        assert headrace("broker", "stop", "--data-dir", data_dir / "broker-2").returncode == 0
        shown = headrace("broker", "status", "--data-dir", data_dir).stdout
        assert f"broker 1: {first}, pid" in shown
        assert f"broker 2: {second}, down" in shown
        assert f"controller: {ready['listeners']['controller']}, pid" in shown
        again = ("--join", first, "--node-id", 2, "--data-dir", data_dir / "broker-2", "--format", "json")
        with running(*again) as (second_again, again_line):
            shown = headrace("broker", "status", "--data-dir", data_dir).stdout
            assert f"broker 2: {json.loads(again_line)['bootstrap']}, pid {second_again.pid}, " in shown
            second_again.terminate()
            assert second_again.wait(COMMAND_SECONDS_MAX) == 0
        assert f"broker 2: {second}, down" in headrace("broker", "status", "--data-dir", data_dir).stdout
        stopped = headrace("broker", "stop", "--data-dir", data_dir)
        assert stopped.returncode == 0
        assert process.wait(COMMAND_SECONDS_MAX) == 0
        assert all(is_gone(row["pid"]) for row in [*facts["brokers"], facts["controller"]])
        assert not (data_dir / "broker.json").exists()


def test_the_control_socket_kills_and_restarts_a_broker(tmp_path):
    options = ("--listen", "127.0.0.1:0", "--data-dir", tmp_path, "--format", "json")
    with running("--brokers", 2, *options) as (process, line):
        ready = json.loads(line)

        def alive():
            return {row["node_id"]: row["pid"] for row in control.call(ready["control"], "status")["brokers"]}

        before = alive()
        control.call(ready["control"], "brokers.kill", node_id=2)
        assert is_gone(before[2])
        assert alive() == {1: before[1], 2: None}
        with pytest.raises(IllegalStateError, match="broker 1 is already running"):
            control.call(ready["control"], "brokers.start", node_id=1)
        with pytest.raises(ConfigError, match="unknown broker 7 in this cluster: expected one of 1, 2"):
            control.call(ready["control"], "brokers.kill", node_id=7)
        control.call(ready["control"], "brokers.start", node_id=2)
        assert alive()[2] not in (None, before[2])
        assert known_brokers(ready["bootstrap"].split(",")[1]) == {1, 2}
        process.terminate()
        assert process.wait(COMMAND_SECONDS_MAX) == 0


def test_a_partition_that_lost_its_data_is_named_with_a_working_remedy(tmp_path):
    options = ("--listen", "127.0.0.1:0", "--data-dir", tmp_path, "--format", "json")
    with running("--brokers", 2, *options) as (process, line):
        ready = json.loads(line)
        status = ("broker", "status", "--data-dir", tmp_path)
        created = headrace("topic", "create", "orders", "-p", 1, "-r", 2, "--bootstrap", ready["bootstrap"])
        assert created.returncode == 0, created.stderr
        with Producer(bootstrap_servers=ready["bootstrap"], acks="all") as producer:
            producer.send("orders", b"on both").result(20)
            control.call(ready["control"], "brokers.kill", 30, node_id=2)
            producer.send("orders", b"on the first only").result(20)
        control.call(ready["control"], "brokers.kill", 30, node_id=1)
        eventually("nobody leads", lambda: "orders-0 has no leader" in headrace(*status).stdout)
        assert "orders-0 has no leader: it gets one when broker 1 is back with its data" in headrace(*status).stdout

        (tmp_path / "broker-1").rename(tmp_path / "lost")
        for node_id in (1, 2):
            control.call(ready["control"], "brokers.start", 30, node_id=node_id)
        shown = headrace(*status).stdout
        assert "orders-0 has no leader: every broker that had all acknowledged records has restarted without" in shown
        assert "Stop broker 1 and restore its data folder" in shown
        (row,) = json.loads(headrace(*status, "--format", "json").stdout)["leaderless"]
        assert (row["topic"], row["partition"], row["candidates"]) == ("orders", 0, [])

        assert "stop it first if it has lost more than the others" in shown
        control.call(ready["control"], "brokers.kill", 30, node_id=1)
        remedy = shown.partition("the lost records: headrace ")[2].partition(". ")[0]
        change, _, back = remedy.partition(", and then ")
        option = ("--bootstrap", ready["bootstrap"])
        assert headrace(*change.split(), *option).returncode == 0
        assert headrace("topic", "config", "orders", *back.split(), *option).returncode == 0
        eventually("it has a leader", lambda: "has no leader" not in headrace(*status).stdout)
        with Producer(bootstrap_servers=ready["bootstrap"], acks="all") as producer:
            assert producer.send("orders", b"after what was on both").result(20).offset == 1
        process.terminate()
        assert process.wait(COMMAND_SECONDS_MAX) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_no_broker_outlives_the_supervisor_process(tmp_path, number):
    options = ("--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data")
    with running("--brokers", 2, *options) as (process, line):
        assert line.startswith("headrace cluster of 2 brokers ready: bootstrap.servers=127.0.0.1:")
        facts = json.loads(headrace("broker", "status", "--data-dir", tmp_path / "data", "--format", "json").stdout)
        process.send_signal(number)
        assert process.wait(COMMAND_SECONDS_MAX) == (0 if number == signal.SIGINT else -number)
        processes = [*facts["brokers"], facts["controller"]]
        eventually("all have ended", lambda: all(is_gone(row["pid"]) for row in processes))


def free_ports(count):
    """Return the first of `count` consecutive free ports."""
    while True:
        first = free_port()
        if not any(is_taken("127.0.0.1", first + number) for number in range(count)):
            return first


def test_brokers_use_consecutive_ports_and_any_can_be_killed(tmp_path):
    port = free_ports(4)
    options = ("--listen", f"127.0.0.1:{port}", "--data-dir", tmp_path, "--format", "json")
    with running("--brokers", 3, *options) as (process, line):
        ready = json.loads(line)
        assert ready["bootstrap"] == ",".join(f"127.0.0.1:{port + number}" for number in range(3))
        assert ready["listeners"]["controller"] == f"127.0.0.1:{port + 3}"
        with Producer(bootstrap_servers=ready["bootstrap"], acks="all", max_block_ms=20_000) as producer:
            producer.send("orders", b"before").result(20)
            for node_id in (1, 2, 3):
                control.call(ready["control"], "brokers.kill", 30, node_id=node_id)
                producer.send("orders", b"while it is down").result(30)
                control.call(ready["control"], "brokers.start", 30, node_id=node_id)
                eventually("all in sync", lambda: in_sync(ready, 3))
        process.terminate()
        assert process.wait(COMMAND_SECONDS_MAX) == 0


def in_sync(ready, count):
    """Return whether all partitions have `count` in-sync replicas, according to the controller."""
    status = control.call(ready["control"], "status")
    run_file = control.read_run_file(Path(status["controller"]["data_dir"]))
    assert run_file is not None
    partitions = control.call(run_file["control"], "topics.describe", name="orders")
    return all(len(partition["isr"]) == count for partition in partitions)


def test_a_port_in_use_is_reported_with_its_process(tmp_path):
    port = free_ports(3)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port + 1))
        other.listen()
        failed = headrace("broker", "start", "--brokers", 2, "--listen", f"127.0.0.1:{port}", "--data-dir", tmp_path)
    assert failed.returncode == 1
    assert f"127.0.0.1:{port + 1}: port {port + 1} is used by pid {os.getpid()} " in failed.stderr


def test_a_combined_controller_is_kept(tmp_path):
    options = ("--brokers", 2, "--listen", "127.0.0.1:0", "--data-dir", tmp_path, "--format", "json")
    for more in (("--controller", "combined"), ()):
        with running(*options, *more) as (process, line):
            assert sorted(json.loads(line)["listeners"]) == ["broker-1", "broker-2"]
            process.terminate()
            assert process.wait(COMMAND_SECONDS_MAX) == 0
    refused = headrace("broker", "start", *options, "--controller", "separate")
    assert refused.returncode == 2
    assert "has a combined controller, which holds its catalog" in refused.stderr
    (tmp_path / "broker-1").rename(tmp_path / "lost")
    refused = headrace("broker", "start", *options)
    assert refused.returncode == 1
    assert f"is broker 1, but {tmp_path / 'broker-1'} has no catalog.journal: restore the folder" in refused.stderr


def test_a_cluster_folder_is_not_used_for_a_single_broker(tmp_path):
    options = ("--listen", "127.0.0.1:0", "--data-dir", tmp_path, "--format", "json")
    with running("--brokers", 2, *options) as (process, line):
        with Producer(bootstrap_servers=json.loads(line)["bootstrap"]) as producer:
            producer.send("orders", b"x").result(20)
        process.terminate()
        assert process.wait(COMMAND_SECONDS_MAX) == 0
    files = set(tmp_path.rglob("*"))
    alone = headrace("broker", "start", *options)
    assert alone.returncode == 2
    stderr = " ".join(alone.stderr.split())
    assert f"{tmp_path} holds a cluster of 2 brokers (broker-1, broker-2): start it with --brokers 2, or" in stderr
    assert set(tmp_path.rglob("*")) == files

    (tmp_path / "broker-0").rename(tmp_path / "lost")
    refused = headrace("broker", "start", "--brokers", 2, *options)
    assert refused.returncode == 1
    assert f"is broker 0, but {tmp_path / 'broker-0'} has no catalog.journal: restore the folder" in refused.stderr
    remedy = refused.stderr.partition("from the other brokers: headrace ")[2].split()
    assert headrace(*remedy).returncode == 0
    with running("--brokers", 2, *options) as (process, line):
        with Producer(bootstrap_servers=json.loads(line)["bootstrap"]) as producer:
            assert producer.send("orders", b"y").result(20).offset == 1
        process.terminate()
        assert process.wait(COMMAND_SECONDS_MAX) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--brokers", 0), 2, "0 is not in the range"),
        (("--brokers", 2, "--join", "127.0.0.1:1"), 2, "--join and --node-id apply to one broker"),
        (("--brokers", 2, "--listen", "0.0.0.0:0"), 2, "--brokers supports only 127.0.0.1, got 0.0.0.0"),
        (("--brokers", 2, "-X", "num.partitions=many"), 1, "num.partitions is 'many'; it may be"),
        (("--brokers", 2, "-X", "listeners=PLAINTEXT://127.0.0.1:7"), 1, "all brokers of the cluster would listen on"),
        (("--controller", "separate"), 2, "--controller requires --brokers"),
        (
            ("--brokers", 3, "--listen", "127.0.0.1:65533"),
            2,
            "need 4 consecutive ports, but 65536 exceeds 65535; start at 65532 or lower",
        ),
        (("--join", "127.0.0.1:1"), 2, "--join requires --node-id"),
        (("--join", "nowhere", "--node-id", 2), 1, "it may be HOST:PORT"),
    ],
    ids=["none", "both", "open", "value", "port", "controller", "last port", "number", "address"],
)
def test_invalid_usage_is_one_paragraph(tmp_path, arguments, code, message):
    done = headrace("broker", "start", "--data-dir", tmp_path, *arguments)
    assert done.returncode == code
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
