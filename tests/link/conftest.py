"""Fixtures for link tests: a client at one end, a scripted server at the other."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.client.addresses import parse
from headrace.client.connection import ConnectionSettings, Request, Response
from headrace.client.metadata import Metadata, MetadataUpdater
from headrace.client.network import NetworkClient, NetworkSettings
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.errors import AuthenticationError
from headrace.wire.schema import RequestMessage
from tests.support.scripted import Script, ScriptedServer

SECONDS_MAX = 15.0
NODE = 1


class Link:
    """A network client with short time-outs."""

    def __init__(self, address: str, settings: ConnectionSettings, network: NetworkSettings, clock: Clock) -> None:
        self._clock = clock
        self.client = NetworkClient(settings, network, clock)
        self.client.on_auth_failure = self._refused
        self.auth_errors: list[AuthenticationError] = []
        self.polls = 0
        self.client.set_node(NODE, parse(address)[0])

    def _refused(self, error: AuthenticationError) -> None:
        self.auth_errors.append(error)

    @property
    def now(self) -> float:
        return self._clock.monotonic_ms()

    def turn(self, timeout_ms: float = 200) -> None:
        self.polls += 1
        self.client.poll(timeout_ms, self.now)

    def until(self, what: str, true: object) -> None:
        """Poll until a condition (a callable) holds."""
        assert callable(true)
        deadline = time.monotonic() + SECONDS_MAX
        while not true():
            assert time.monotonic() < deadline, (
                f"{what}: not after {SECONDS_MAX} s; last failure {self.client.last_failure}"
            )
            self.turn()

    def connect(self) -> None:
        self.until("a connection", lambda: self.client.is_ready(NODE, self.now))

    def fail_to_connect(self) -> str:
        """Return the error of the first failed attempt."""
        self.until(
            "a failure", lambda: not self.client.is_ready(NODE, self.now) and self.client.last_failure is not None
        )
        return str(self.client.last_failure)

    def begin(
        self,
        message: RequestMessage[Any],
        *,
        timeout_ms: float = SECONDS_MAX * 1000,
        versions: tuple[int, int] | None = None,
        expects_response: bool = True,
    ) -> list[Response[Any]]:
        """Send once connected; the response will be in the list."""
        self.connect()
        responses: list[Response[Any]] = []
        request = Request.of(message, responses.append, timeout_ms, versions)
        request.expects_response = expects_response
        self.client.send(NODE, request, self.now)
        return responses

    def send_request(self, message: RequestMessage[Any], **options: object) -> Response[Any]:
        responses = self.begin(message, **options)  # type: ignore[arg-type]
        self.until("a response", lambda: responses)
        assert len(responses) == 1
        return responses[0]


class Links:
    """Creates servers and links, and closes them after the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def server(self, *scripts: Script, **options: object) -> ScriptedServer:
        return self._stack.enter_context(ScriptedServer(*scripts, **options))  # type: ignore[arg-type]

    def link(
        self,
        server: ScriptedServer | str,
        network: NetworkSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: object,
    ) -> Link:
        network = network or NetworkSettings(reconnect_backoff_ms=5, reconnect_backoff_max_ms=20)
        settings = ConnectionSettings("link-test", **{"connect_timeout_ms": 2000, **options})  # type: ignore[arg-type]
        link = Link(server if isinstance(server, str) else server.address, settings, network, clock)
        self._stack.callback(link.client.close)
        return link

    def to(self, *scripts: Script, **options: object) -> Link:
        """A link to a server with these scripts."""
        return self.link(self.server(*scripts), **options)  # type: ignore[arg-type]

    def updater(self, link: Link, servers: str, topics: tuple[str, ...] = ("t",), **options: object) -> MetadataUpdater:
        metadata = Metadata(SYSTEM_CLOCK, retry_backoff_ms=5, retry_backoff_max_ms=20)
        for topic in topics:
            metadata.add_topic(topic)
        settings = {"request_timeout_ms": 2000, "rebootstrap_trigger_ms": 60_000, **options}
        return MetadataUpdater(metadata, link.client, parse(servers), **settings)  # type: ignore[arg-type]


@pytest.fixture
def links() -> Iterator[Links]:
    with ExitStack() as stack:
        yield Links(stack)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return cert, key
