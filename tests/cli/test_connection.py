"""Which cluster, with which options; and the broker that is there when none was named."""

from __future__ import annotations

import json
import signal
import socket
import threading

import pytest

from headrace.cli.connection import Connection
from headrace.cli.output import WrongUsageError
from headrace.cli.running import is_alive
from headrace.cli.settings import Setting, merged
from shell import begin, pipe, run
from waiting import eventually

RUN_FILE = "headrace/broker/broker.json"


def test_a_flag_counts_more_than_x_than_the_environment_than_the_file_than_the_default(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("linger.ms=1\nacks=1\nbatch.size=1\nbootstrap.servers=file:1\n")
    environment = {"HEADRACE_LINGER_MS": "2", "HEADRACE_ACKS": "0", "HEADRACE_BOOTSTRAP_SERVERS": "env:1"}
    found = merged({"bootstrap.servers": "flag:1"}, ["linger.ms=3", "bootstrap.servers=x:1"], file, environment)
    assert found == {
        "bootstrap.servers": Setting("flag:1", "flag"),
        "linger.ms": Setting("3", "-X"),
        "acks": Setting("0", "environment HEADRACE_ACKS"),
        "batch.size": Setting("1", f"file {file}"),
    }
    connection = Connection(found)
    assert connection.bootstrap == "flag:1"
    assert connection.options()["acks"] == "0"
    assert [connection.source_of(name) for name in ("linger.ms", "retries")] == ["-X", "default"]


def test_a_file_may_be_named_by_the_environment_and_shared_with_consumers(tmp_path):
    file = tmp_path / "shared.properties"
    file.write_text("auto.offset.reset=earliest\ngroup.id=g\nfetch.min.bytes=7\n")
    found = merged({}, [], None, {"HEADRACE_CONFIG": str(file), "HEADRACE_KERNEL": "python"})
    assert found.keys() == {"group.id", "fetch.min.bytes"}
    other = tmp_path / "other.properties"
    other.write_text("acks=1\n")
    assert merged({}, [], other, {"HEADRACE_CONFIG": str(file)}).keys() == {"acks"}


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("ackss=1", "-X ackss: there is no option 'ackss'; did you mean 'acks'?"),
        ("acks=5", "-X acks: acks is '5'; it may be all, -1, 0, 1"),
        ("acks", "-X takes key=value, not 'acks'"),
        ("auto.offset.reset=earliest", "--offsets says where to begin"),
        ("bootstrap.servers=nonsense", "expected host:port, got 'nonsense'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_with_its_place(assignment, said):
    with pytest.raises(WrongUsageError) as refused:
        merged({}, [assignment], None, {})
    assert said in refused.value.message
    assert refused.value.exit_code == 2


def test_a_mistake_in_the_environment_or_the_file_names_the_place(tmp_path, capsys):
    file = tmp_path / "f.properties"
    file.write_text("linger=1\n")
    with pytest.raises(WrongUsageError, match=rf"file {file}: there is no option 'linger'"):
        merged({}, [], file, {})
    with pytest.raises(WrongUsageError, match="environment HEADRACE_ACKS: acks is 'x'"):
        merged({}, [], None, {"HEADRACE_ACKS": "x"})
    with pytest.raises(WrongUsageError, match="HEADRACE_CONFIG: cannot read"):
        merged({}, [], None, {"HEADRACE_CONFIG": str(tmp_path / "none")})
    assert merged({}, [], None, {"HEADRACE_LINGERS_MS": "1"}) == {}
    assert "HEADRACE_LINGERS_MS names no option; did you mean 'linger.ms'?" in capsys.readouterr().err


def test_addresses_that_lead_nowhere_are_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = run("topic", "list", "-b", f"127.0.0.1:{port}")
    assert done.returncode == 3
    assert f"127.0.0.1:{port} refused the connection, for nothing listens there" in done.stderr.decode()
    assert f"headrace doctor -b 127.0.0.1:{port}" in done.stderr.decode()
    done = run("topic", "list", "-b", "no-such-host.invalid:9092")
    assert done.returncode == 3
    assert "cannot resolve 'no-such-host.invalid'" in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert b"Traceback" in run("topic", "list", "-b", f"127.0.0.1:{port}", "--debug").stderr


def test_what_is_no_kafka_is_told_so():
    def answer(server):
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,), daemon=True)
        thread.start()
        done = run("topic", "list", "-b", f"127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert done.returncode == 1
    said = done.stderr.decode()
    assert "the peer speaks HTTP" in said
    assert said.count("\n") == 1, "the log of every attempt is not for people"


def test_without_an_address_a_broker_is_started_and_the_data_stay(tmp_path):
    done = run("produce", "t", stdin=b"one\ntwo\n", state=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "started one for this command" in done.stderr.decode()
    assert not (tmp_path / RUN_FILE).exists(), "it has stopped in good order"
    assert run("consume", "t", state=tmp_path).stdout == b"one\ntwo\n"


def test_both_ends_of_a_pipe_share_the_broker_that_one_of_them_started(tmp_path):
    run("produce", "a", stdin=b"".join(b"%d\n" % i for i in range(5000)), state=tmp_path)
    done = pipe("headrace consume a --format json | headrace produce b --format json", state=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"started one for this command") == 1
    assert run("consume", "b", state=tmp_path).stdout.count(b"\n") == 5000
    assert not (tmp_path / RUN_FILE).exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_the_broker_goes_with_its_command_however_that_ends(tmp_path, number, code):
    run("produce", "t", stdin=b"x\n", state=tmp_path)
    with begin("consume", "t", "--follow", state=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"x\n"
        pid = json.loads((tmp_path / RUN_FILE).read_text())["pid"]
        process.send_signal(number)
        assert process.wait(20) == code
        assert b"Traceback" not in process.stderr.read()
    eventually("the end of the broker", lambda: not is_alive(pid))
    assert not (tmp_path / RUN_FILE).exists()
