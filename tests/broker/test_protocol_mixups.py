"""A listener of another security protocol, or none at all: the error comes at once, with the option to change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from headrace import Producer
from headrace.broker.ports import free_port
from headrace.client.admin import AdminClient
from headrace.client.credentials import SaslSettings
from headrace.client.tls import TlsSettings
from headrace.errors import AuthenticationError, HeadraceError
from tests.support.cli_runner import refused
from tests.support.secure_broker import OPENSSL, SecureBroker, make_certificates

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, StructType

from headrace.spark import errors as spark_errors
from headrace.spark import lookup, sink
from headrace.spark.errors import PlanError
from headrace.spark.sink_options import SinkOptions
from headrace.spark.source import BatchReader
from headrace.spark.source_options import Mode, parse, schema_of

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")

SECONDS_MAX = 3.0
"""For an error that has to come at once; the timeouts of the clients are 30 to 60 s."""
ROWS = StructType().add("value", BinaryType())


@dataclass(frozen=True)
class Secure:
    broker: SecureBroker
    ca: str

    def options(self, listener: str, protocol: str) -> dict[str, str]:
        options = {"bootstrap.servers": self.broker.at[listener], "security.protocol": protocol}
        if protocol.endswith("SSL"):
            options["ssl.truststore.location"] = self.ca
        if protocol.startswith("SASL"):
            options |= {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": "secret"}
        return options


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    with SecureBroker(folder, {"sasl.plain.users": "ann:secret"}) as broker:
        yield Secure(broker, str(folder / "ca.pem"))


def produce(options: dict[str, str]) -> None:
    with Producer(options) as producer:
        producer.send("t", b"v").result(60)


def list_topics(options: dict[str, str]) -> None:
    protocol = options.get("security.protocol", "PLAINTEXT")
    tls = TlsSettings(ca_file=options["ssl.truststore.location"]) if protocol.endswith("SSL") else None
    sasl = SaslSettings("PLAIN", username="ann", password="secret") if protocol.startswith("SASL") else None
    with AdminClient(options["bootstrap.servers"], tls=tls, sasl=sasl) as admin:
        admin.list_topics()


def plan_sink(options: dict[str, str]) -> None:
    given = {f"kafka.{name}": value for name, value in options.items()}
    sink.plan(SinkOptions.parse({"topic": "t", **given}, is_stream=False), ROWS)


def plan_source(options: dict[str, str]) -> None:
    given = {"subscribe": "t", **{f"kafka.{name}": value for name, value in options.items()}}
    BatchReader(given, schema_of(parse(given, Mode.ANY))).partitions()


MIXUPS = [
    ("PLAINTEXT", "SSL", "does not use TLS, but security.protocol is SSL: set security.protocol=PLAINTEXT, or"),
    ("SASL_PLAINTEXT", "SASL_SSL", "does not use TLS, but security.protocol is SASL_SSL: set security.protocol=SASL_P"),
    ("SSL", "PLAINTEXT", "uses TLS, but security.protocol is PLAINTEXT: set security.protocol=SSL, or"),
    ("MTLS", "PLAINTEXT", "uses TLS, but security.protocol is PLAINTEXT: set security.protocol=SSL, or"),
    ("SASL_SSL", "SASL_PLAINTEXT", "uses TLS, but security.protocol is SASL_PLAINTEXT: set security.protocol=SASL_SSL"),
    ("SASL_PLAINTEXT", "PLAINTEXT", "uses SASL (PLAIN, "),
    ("SASL_SSL", "SSL", "but security.protocol is SSL: set security.protocol=SASL_SSL and sasl.mechanism, or"),
    ("PLAINTEXT", "SASL_PLAINTEXT", "does not use SASL on this port"),
]


def error_at_once(
    call: Callable[[dict[str, str]], None], options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> HeadraceError:
    """Return the error of a call. It comes at once, and one line is logged."""
    started = time.monotonic()
    with caplog.at_level(logging.WARNING, "headrace"), pytest.raises(HeadraceError) as caught:
        call(options)
    assert time.monotonic() - started < SECONDS_MAX
    assert len(caplog.records) == 1, caplog.messages
    return caught.value


@pytest.mark.parametrize("call", [produce, list_topics])
@pytest.mark.parametrize(("listener", "protocol", "message"), MIXUPS)
def test_clients_report_another_protocol_at_once(secure, caplog, call, listener, protocol, message):
    error = error_at_once(call, secure.options(listener, protocol), caplog)
    assert isinstance(error, AuthenticationError)  # permanent, as in Kafka's clients
    assert f"{secure.broker.at[listener]} " in str(error)
    assert message in str(error)


@pytest.mark.parametrize("call", [plan_sink, plan_source])
@pytest.mark.parametrize(("listener", "protocol", "message"), [MIXUPS[0], MIXUPS[2], MIXUPS[5]])
def test_planning_reports_another_protocol_at_once(secure, caplog, call, listener, protocol, message):
    error = error_at_once(call, secure.options(listener, protocol), caplog)
    assert isinstance(error, PlanError)
    kind = "authentication" if "SASL" in listener else "TLS"
    assert str(error).startswith(f"{kind} with kafka.bootstrap.servers='{secure.broker.at[listener]}' failed: ")
    assert message in str(error)
    assert "no response" not in str(error)


@pytest.mark.parametrize(("listener", "protocol", "message"), [MIXUPS[0], MIXUPS[2]])
def test_the_command_line_reports_another_protocol(secure, listener, protocol, message):
    options = secure.options(listener, protocol)
    address = options.pop("bootstrap.servers")
    assignments = [part for name, value in options.items() for part in ("-X", f"{name}={value}")]
    assert message in refused(1, "topic", "list", "-b", address, *assignments)


@pytest.mark.parametrize("call", [plan_sink, plan_source])
def test_planning_reports_a_refused_connection_once(monkeypatch, caplog, call):
    assert spark_errors.FIRST_CONNECTION_MS_MAX < 10_000
    for module in (sink, lookup):  # the test does not wait as long
        monkeypatch.setattr(module, "FIRST_CONNECTION_MS_MAX", 1000.0)
    address = f"127.0.0.1:{free_port()}"
    error = error_at_once(call, {"bootstrap.servers": address}, caplog)
    assert str(error) == (
        f"cannot use kafka.bootstrap.servers='{address}': no connection to a broker for 1.0 s; cannot connect to "
        f"{address}: Connection refused; is a broker running there? Check that the broker runs and that this is its "
        "address"
    )


def test_planning_names_wrong_credentials(secure, caplog):
    options = secure.options("SASL_PLAINTEXT", "SASL_PLAINTEXT") | {"sasl.password": "wrong"}
    error = error_at_once(plan_sink, options, caplog)
    assert str(error).startswith("authentication with kafka.bootstrap.servers=")
    assert "check sasl.username and sasl.password" in str(error)
