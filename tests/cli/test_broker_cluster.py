"""headrace broker start --brokers and --join, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from broker_commands import COMMAND_SECONDS_MAX, headrace, running
from headrace import Producer
from headrace.broker import control
from headrace.broker.ports import free_port, is_taken
from headrace.errors import ConfigError, IllegalStateError
from headrace.wire.api.metadata import MetadataRequest, MetadataResponse
from peers.connection import Connection
from waiting import eventually


def brokers_by(bootstrap):
    with Connection(bootstrap) as connection:
        answer = connection.call(MetadataRequest(topics=[]), 9)
        assert isinstance(answer, MetadataResponse)
        return {node.node_id for node in answer.brokers}


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_cluster_is_started_shown_joined_and_stopped_from_the_command_line(tmp_path):
    data_dir = tmp_path / "data"
    options = ("--listen", "127.0.0.1:0", "--data-dir", data_dir, "--format", "json")
    with running("--brokers", 2, *options) as (process, line):
        ready = json.loads(line)
        first, second = ready["bootstrap"].split(",")
        assert brokers_by(first) == brokers_by(second) == {1, 2}
        with Producer(bootstrap_servers=second) as producer:
            assert producer.send("made-by-sending", b"x").result(20).offset == 0

        joined = ("--join", first, "--node-id", 3, "--data-dir", tmp_path / "third", "--format", "json")
        with running(*joined) as (third, third_line):
            assert brokers_by(json.loads(third_line)["bootstrap"]) == {1, 2, 3}
            third.terminate()
            assert third.wait(COMMAND_SECONDS_MAX) == 0
            assert brokers_by(first) == {1, 2}

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


def test_a_broker_of_a_cluster_is_killed_and_started_again_by_the_control_socket(tmp_path):
    options = ("--listen", "127.0.0.1:0", "--data-dir", tmp_path, "--format", "json")
    with running("--brokers", 2, *options) as (process, line):
        ready = json.loads(line)

        def alive():
            return {row["node_id"]: row["pid"] for row in control.call(ready["control"], "status")["brokers"]}

        before = alive()
        control.call(ready["control"], "brokers.kill", node_id=2)
        assert is_gone(before[2])
        assert alive() == {1: before[1], 2: None}
        with pytest.raises(IllegalStateError, match="broker 1 runs already"):
            control.call(ready["control"], "brokers.start", node_id=1)
        with pytest.raises(ConfigError, match="there is no broker 7 in this cluster; there are 1, 2"):
            control.call(ready["control"], "brokers.kill", node_id=7)
        control.call(ready["control"], "brokers.start", node_id=2)
        assert alive()[2] not in (None, before[2])
        assert brokers_by(ready["bootstrap"].split(",")[1]) == {1, 2}
        process.terminate()
        assert process.wait(COMMAND_SECONDS_MAX) == 0


def test_a_partition_whose_only_in_sync_replica_lost_its_data_is_named_with_a_remedy_that_works(tmp_path):
    options = ("--listen", "127.0.0.1:0", "--data-dir", tmp_path, "--format", "json")
    with running("--brokers", 2, *options) as (process, line):
        ready = json.loads(line)
        status = ("broker", "status", "--data-dir", tmp_path)
        made = headrace("topic", "create", "orders", "-p", 1, "-r", 2, "--bootstrap", ready["bootstrap"])
        assert made.returncode == 0, made.stderr
        with Producer(bootstrap_servers=ready["bootstrap"], acks="all") as producer:
            producer.send("orders", b"on both").result(20)
            control.call(ready["control"], "brokers.kill", 30, node_id=2)
            producer.send("orders", b"on the first only").result(20)
        control.call(ready["control"], "brokers.kill", 30, node_id=1)
        eventually("nobody leads", lambda: "orders-0 has no leader" in headrace(*status).stdout)
        assert "orders-0 has no leader: it gets one when broker 1 is back, with the data" in headrace(*status).stdout

        (tmp_path / "broker-1").rename(tmp_path / "lost")
        for node_id in (1, 2):
            control.call(ready["control"], "brokers.start", 30, node_id=node_id)
        shown = headrace(*status).stdout
        assert "orders-0 has no leader: every broker that had all acknowledged records has come back without" in shown
        assert "Stop broker 1 and restore its data folder" in shown
        (row,) = json.loads(headrace(*status, "--format", "json").stdout)["leaderless"]
        assert (row["topic"], row["partition"], row["candidates"]) == ("orders", 0, [])

        assert "stop it first if it has lost more than the others" in shown
        control.call(ready["control"], "brokers.kill", 30, node_id=1)
        remedy = shown.partition("records that are lost: headrace ")[2].partition(". ")[0]
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
def test_no_broker_outlives_the_process_that_runs_the_cluster(tmp_path, number):
    options = ("--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data")
    with running("--brokers", 2, *options) as (process, line):
        assert line.startswith("headrace cluster of 2 brokers ready: bootstrap.servers=127.0.0.1:")
        facts = json.loads(headrace("broker", "status", "--data-dir", tmp_path / "data", "--format", "json").stdout)
        process.send_signal(number)
        assert process.wait(COMMAND_SECONDS_MAX) == (0 if number == signal.SIGINT else -number)
        processes = [*facts["brokers"], facts["controller"]]
        eventually("all have ended", lambda: all(is_gone(row["pid"]) for row in processes))


def free_ports(count):
    """The first of so many consecutive ports that nobody listens on."""
    while True:
        first = free_port()
        if not any(is_taken("127.0.0.1", first + number) for number in range(count)):
            return first


def test_brokers_listen_on_consecutive_ports_and_any_of_them_can_be_killed(tmp_path):
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
    """Whether all partitions have so many replicas in sync, as the controller knows."""
    status = control.call(ready["control"], "status")
    facts = control.read_run_file(Path(status["controller"]["data_dir"]))
    assert facts is not None
    places = control.call(facts["control"], "topics.describe", name="orders")
    return all(len(place["isr"]) == count for place in places)


def test_a_port_that_is_taken_is_named_with_who_has_it(tmp_path):
    port = free_ports(3)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port + 1))
        other.listen()
        failed = headrace("broker", "start", "--brokers", 2, "--listen", f"127.0.0.1:{port}", "--data-dir", tmp_path)
    assert failed.returncode == 1
    assert f"127.0.0.1:{port + 1}: port {port + 1} is taken by pid {os.getpid()} " in failed.stderr


def test_a_folder_whose_first_broker_is_the_controller_stays_so(tmp_path):
    options = ("--brokers", 2, "--listen", "127.0.0.1:0", "--data-dir", tmp_path, "--format", "json")
    for more in (("--controller", "combined"), ()):
        with running(*options, *more) as (process, line):
            assert sorted(json.loads(line)["listeners"]) == ["broker-1", "broker-2"]
            process.terminate()
            assert process.wait(COMMAND_SECONDS_MAX) == 0
    refused = headrace("broker", "start", *options, "--controller", "separate")
    assert refused.returncode == 2
    assert "has a combined controller, which has its catalog" in refused.stderr
    (tmp_path / "broker-1").rename(tmp_path / "lost")
    refused = headrace("broker", "start", *options)
    assert refused.returncode == 1
    assert f"is broker 1, but {tmp_path / 'broker-1'} has no catalog.journal: put the folder back" in refused.stderr


def test_the_folder_of_a_cluster_is_not_taken_for_a_new_one(tmp_path):
    options = ("--listen", "127.0.0.1:0", "--data-dir", tmp_path, "--format", "json")
    with running("--brokers", 2, *options) as (process, line):
        with Producer(bootstrap_servers=json.loads(line)["bootstrap"]) as producer:
            producer.send("orders", b"x").result(20)
        process.terminate()
        assert process.wait(COMMAND_SECONDS_MAX) == 0
    files = set(tmp_path.rglob("*"))
    alone = headrace("broker", "start", *options)
    assert alone.returncode == 2
    said = " ".join(alone.stderr.split())
    assert f"{tmp_path} holds a cluster of 2 brokers (broker-1, broker-2): start it with --brokers 2, or" in said
    assert set(tmp_path.rglob("*")) == files

    (tmp_path / "broker-0").rename(tmp_path / "lost")
    refused = headrace("broker", "start", "--brokers", 2, *options)
    assert refused.returncode == 1
    assert f"is broker 0, but {tmp_path / 'broker-0'} has no catalog.journal: put the folder back" in refused.stderr
    remedy = refused.stderr.partition("from the other brokers: headrace ")[2].split()
    assert headrace(*remedy).returncode == 0
    with running("--brokers", 2, *options) as (process, line):
        with Producer(bootstrap_servers=json.loads(line)["bootstrap"]) as producer:
            assert producer.send("orders", b"y").result(20).offset == 1
        process.terminate()
        assert process.wait(COMMAND_SECONDS_MAX) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--brokers", 0), 2, "0 is not in the range"),
        (("--brokers", 2, "--join", "127.0.0.1:1"), 2, "--join and --node-id are for one broker"),
        (("--brokers", 2, "--listen", "0.0.0.0:0"), 2, "--brokers starts brokers on 127.0.0.1 only"),
        (("--brokers", 2, "-X", "num.partitions=many"), 1, "num.partitions is 'many'; it may be"),
        (("--brokers", 2, "-X", "listeners=PLAINTEXT://127.0.0.1:7"), 1, "all brokers of the cluster would listen on"),
        (("--controller", "separate"), 2, "--controller is for --brokers"),
        (
            ("--brokers", 3, "--listen", "127.0.0.1:65533"),
            2,
            "need 4 consecutive ports, 65533 to 65536, and 65535 is the last there is: begin with 65532 or a lower one",
        ),
        (("--join", "127.0.0.1:1"), 2, "--join needs --node-id"),
        (("--join", "nowhere", "--node-id", 2), 1, "headrace.controller is HOST:PORT"),
    ],
    ids=["none", "both", "open", "value", "port", "controller", "last port", "number", "address"],
)
def test_a_wrong_command_line_is_answered_in_one_paragraph(tmp_path, arguments, code, said):
    done = headrace("broker", "start", "--data-dir", tmp_path, *arguments)
    assert done.returncode == code
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
