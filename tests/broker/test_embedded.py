"""EmbeddedBroker: lifecycle, options, errors and the control socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace import Producer
from headrace.broker import EmbeddedBroker, control
from headrace.errors import BrokerError, ClosedError, ConfigError, ConnectionFailedError, IllegalStateError
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.layout import Record
from headrace.wire.records import encode
from tests.support.peers import librdkafka
from tests.support.peers.broker import Broker
from tests.support.peers.connection import Connection
from tests.support.peers.embedded import OwnBroker
from tests.support.waiting import eventually

START_SECONDS_MAX = 10
ROOM_MEMORY_BYTES_MAX = 80 * 1024 * 1024


def send(broker, topic, value):
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        return producer.send(topic, value).result(20).offset


def values(broker, topic):
    return [record.value for record in librdkafka.consume_to_end(broker.bootstrap, topic)]


def run_file(broker) -> dict[str, Any]:
    content = control.read_run_file(broker.data_dir)
    assert content is not None
    return content


def unsent_bytes(port):
    """Return the bytes of responses in the send buffers of a listener, which the peer does not read."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[4].partition(":")[0], 16) for row in rows if row[1].endswith(f":{port:04X}"))


def is_alive(pid):
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("in_process", [False, True])
def test_a_with_block_has_a_running_broker(in_process):
    with EmbeddedBroker(in_process=in_process) as broker:
        topic = broker.create_topic("greetings")
        assert send(broker, topic, b"hello") == 0
        assert values(broker, topic) == [b"hello"]
        pid, data_dir = broker.pid, broker.data_dir
        assert (pid == os.getpid()) == in_process
        assert data_dir.is_dir()
    assert not broker.is_running
    assert in_process or not is_alive(pid)
    assert not data_dir.exists()
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-broker"]


@pytest.mark.parametrize("how", ["stop", "kill", "restart"])
def test_a_restart_keeps_port_and_data(how):
    with EmbeddedBroker() as broker:
        topic = broker.create_topic("kept")
        send(broker, topic, b"before")
        before = broker.bootstrap
        first = broker.pid
        getattr(broker, how)()
        if how != "restart":
            assert not broker.is_running
            assert broker.pid is None
            getattr(broker, how)()  # nothing left to end
            broker.start()
        assert broker.pid != first
        assert broker.bootstrap == before
        assert send(broker, topic, b"after") == 1
        assert values(broker, topic) == [b"before", b"after"]


def test_a_named_data_folder_is_kept(tmp_path):
    with EmbeddedBroker(data_dir=tmp_path / "data") as broker:
        topic = broker.create_topic("kept")
        send(broker, topic, b"here")
    with EmbeddedBroker(data_dir=tmp_path / "data") as broker:
        assert values(broker, topic) == [b"here"]
    assert (tmp_path / "data").is_dir()


@pytest.mark.parametrize("in_process", [False, True])
def test_options_by_name_and_by_keyword(in_process):
    with EmbeddedBroker({"num.partitions": 3}, auto_create_topics_enable=True, in_process=in_process) as broker:
        send(broker, "made-by-sending", b"x")
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            assert len(producer.partitions_for("made-by-sending")) == 3


def test_custom_listeners_keep_their_ports():
    with EmbeddedBroker(
        listeners="PLAINTEXT://127.0.0.1:0, OTHER://127.0.0.1:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
    ) as broker:
        before = broker.status()["listeners"]
        assert len({*before.values()}) == 2
        broker.restart()
        assert broker.status()["listeners"] == before


def test_invalid_options_are_rejected_at_once():
    with pytest.raises(ConfigError, match=r"num.partitions is 'many'"):
        EmbeddedBroker({"num.partitions": "many"})
    with pytest.raises(ConfigError, match=r"unknown option 'num_partition'; did you mean 'num.partitions'"):
        EmbeddedBroker(num_partition=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="cannot be sent to another process"):
        EmbeddedBroker({"somebodys.object": object()}).start()


@pytest.mark.parametrize("in_process", [False, True])
def test_a_used_port_is_reported_with_its_process(in_process):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        broker = EmbeddedBroker(port=port, in_process=in_process)
        with pytest.raises(IllegalStateError, match=rf"port {port} is used by pid {os.getpid()} \(.*pytest"):
            broker.start()
        broker.close()
    assert not broker.data_dir.exists()


@pytest.mark.parametrize("in_process", [False, True])
def test_a_locked_folder_is_reported_with_its_process(tmp_path, in_process):
    with (
        EmbeddedBroker(data_dir=tmp_path) as broker,
        pytest.raises(IllegalStateError, match=rf"(?s){tmp_path}.*{broker.pid}"),
    ):
        EmbeddedBroker(data_dir=tmp_path, in_process=in_process).start()


def test_calls_in_the_wrong_state_are_rejected():
    broker = EmbeddedBroker()
    with pytest.raises(IllegalStateError, match="not been started"):
        _ = broker.bootstrap
    with pytest.raises(IllegalStateError, match="not running"):
        broker.faults.list()
    with broker:
        with pytest.raises(IllegalStateError, match="already running"):
            broker.start()
        with pytest.raises(IllegalStateError, match="use EmbeddedBroker\\(degraded=True\\)"):
            _ = broker.degrader
    with pytest.raises(ClosedError):
        broker.start()
    broker.close()


def test_a_broker_in_a_thread_cannot_be_killed():
    with EmbeddedBroker(in_process=True) as broker:
        with pytest.raises(IllegalStateError, match="cannot be killed"):
            broker.kill()
        with pytest.raises(IllegalStateError, match="separate process"):
            broker.faults.inject(crash=True)


OWNER = """
import time
from headrace.broker import EmbeddedBroker
broker = EmbeddedBroker().start()
print(broker.pid, broker.data_dir, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_broker_ends_with_its_parent_process_and_removes_its_data(ending):
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
        assert owner.stdout is not None
        pid, data_dir = owner.stdout.readline().split()
        assert is_alive(int(pid))
        owner.send_signal(ending)
        owner.wait(START_SECONDS_MAX)
    eventually("the end of the broker", lambda: not is_alive(int(pid)), START_SECONDS_MAX)
    assert not Path(data_dir.decode()).exists()


def test_a_broker_does_not_end_with_the_thread_that_started_it():
    broker = EmbeddedBroker()
    starter = threading.Thread(target=broker.start)
    starter.start()
    starter.join(START_SECONDS_MAX)
    with broker:
        assert broker.status()["pid"] == broker.pid
        broker.create_topic("still-here")


def test_a_second_signal_exits_at_once():
    with EmbeddedBroker() as broker, Connection(broker.bootstrap) as connection:
        topic = broker.create_topic("large")
        connection.produce(topic, encode([Record(0, 1_700_000_000_000, None, bytes(900_000), ())]))
        partition = FetchPartition(fetch_offset=0, partition_max_bytes=1_000_000)
        for _ in range(50):  # responses that nobody reads: a clean stop waits a while for the client
            connection.send(
                FetchRequest(max_bytes=1_000_000, topics=[FetchTopic(topic=topic, partitions=[partition])]), 4
            )
        pid = broker.status()["pid"]
        eventually("unsent responses", lambda: unsent_bytes(int(broker.bootstrap.partition(":")[2])) > 1_000_000)
        os.kill(pid, signal.SIGTERM)
        eventually("the begin of the stop", lambda: control.read_run_file(broker.data_dir) is None)
        assert broker.is_running
        os.kill(pid, signal.SIGTERM)
        assert broker.wait(START_SECONDS_MAX) == 128 + signal.SIGTERM


def test_the_network_to_a_broker_can_be_degraded():
    with EmbeddedBroker(degraded=True) as broker:
        topic = broker.create_topic("far-away")
        assert broker.bootstrap == broker.degrader.address
        send(broker, topic, b"near")
        assert broker.degrader.connections_total >= 2  # metadata point through it too
        with Producer(bootstrap_servers=broker.bootstrap, retry_backoff_ms=10) as producer:
            producer.send(topic, b"first").result(20)
            broker.degrader.cut()
            sent = producer.send(topic, b"through a cut")
            assert not sent.done()
            broker.degrader.heal()
            sent.result(30)
            broker.restart()
            producer.send(topic, b"after a restart").result(30)
        assert values(broker, topic) == [b"near", b"first", b"through a cut", b"after a restart"]


def test_topics_can_be_created_and_deleted_without_a_client():
    with EmbeddedBroker() as broker:
        broker.create_topic("t", 3, {"cleanup.policy": "compact"})
        with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
            broker.create_topic("t")
        assert broker.delete_topic("t")
        assert not broker.delete_topic("t")


def test_an_embedded_broker_fits_the_interface_of_the_tests():
    with EmbeddedBroker() as embedded:
        broker: Broker = OwnBroker(embedded)
        topic = broker.create_topic("by-an-admin-client", 2)
        send(broker, topic, b"x")
        broker.kill()
        broker.restart()
        broker.stop()
        broker.stop()


# -- the control socket --------------------------------------------------------------------------


def test_the_control_socket_is_accessible_to_its_user_only():
    with EmbeddedBroker() as broker:
        facts = run_file(broker)
        assert facts["pid"] == broker.pid
        assert facts["bootstrap"] == broker.bootstrap
        assert stat.S_IMODE(os.stat(facts["control"]).st_mode) == 0o600
        assert control.call(facts["control"], "ping") == "pong"
    assert control.read_run_file(broker.data_dir) is None
    with pytest.raises(ConnectionFailedError, match="no broker responds at"):
        control.call(facts["control"], "ping")


def test_the_control_socket_of_a_long_path_is_elsewhere(tmp_path):
    with EmbeddedBroker(data_dir=tmp_path / ("long" * 30)) as broker:
        path = Path(run_file(broker)["control"])
        assert path.parent != broker.data_dir
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        broker.create_topic("t")
    assert not path.parent.exists()


@pytest.mark.parametrize(
    "line", [b"", b"nonsense", b"[]", b'"op"', b'{"op": 7}', b'{"op": "none"}', b'{"op": "ping", "args": 7}', b"\xff"]
)
def test_an_invalid_control_request_gets_an_error(line):
    with EmbeddedBroker() as broker, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(START_SECONDS_MAX)
        connection.connect(run_file(broker)["control"])
        stream = connection.makefile("rwb")
        stream.write(line + b"\n")
        stream.flush()
        assert json.loads(stream.readline())["error"]["kind"] == "ConfigError"


def test_an_endless_control_line_closes_the_connection():
    with EmbeddedBroker() as broker, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(START_SECONDS_MAX)
        connection.connect(run_file(broker)["control"])
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(b"x" * 100 * control.LINE_BYTES_MAX)
        assert broker.call("ping") == "pong"


# -- what it costs -------------------------------------------------------------------------------


def test_an_idle_broker_needs_little_memory_and_no_pyarrow():
    with EmbeddedBroker() as broker:
        status = Path(f"/proc/{broker.pid}/status").read_text()
        resident_kib = int(status.partition("VmRSS:")[2].split()[0])
        assert resident_kib * 1024 < ROOM_MEMORY_BYTES_MAX
        assert "pyarrow" not in Path(f"/proc/{broker.pid}/maps").read_text()
