"""The same requests to headrace and to Apache Kafka, one after the other, and a comparison of the responses."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from headrace.client.admin import AdminClient
from headrace.wire.schema import Message
from tests.support.comparison.comparing import request
from tests.support.peers.broker import Broker
from tests.support.peers.connection import Connection

SECONDS_MAX = 20
PAUSE_SECONDS = 0.1
UNAVAILABLE = (14, 15, 16)
"""Codes of a coordinator that is loading, not available or elsewhere."""


class GroupScenario:
    """Requests to one broker about a group, and everything in the responses that can be compared."""

    versions: ClassVar[Mapping[str, int]]
    not_compared: ClassVar[tuple[str, ...]] = ("error_message", "client_host", "throttle_time_ms", "documentation")
    partitions: ClassVar[int] = 1

    def __init__(self, broker: Broker, name: str) -> None:
        self.topic, self.group = f"{name}-topic", f"{name}-group"
        broker.create_topic(self.topic, self.partitions)
        with AdminClient(broker.bootstrap) as admin:
            self.topic_id = admin.describe_topics([self.topic])[self.topic].topic_id.bytes
            self.prepare(broker, admin)
        self.connection = Connection(broker.bootstrap)
        self.seen: list[tuple[str, Any]] = []
        self._names = {name: "unique", self.topic_id: "topic"}
        finding = request("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": [self.group]})
        self.until(lambda: not self.connection.call(finding, 4).coordinators[0].error_code)
        self.until(
            lambda: self.send("DescribeGroups", {"groups": [self.group]}).groups[0].error_code not in UNAVAILABLE
        )

    def prepare(self, broker: Broker, admin: AdminClient) -> None:
        """Fill the topic or configure the group, before the first request."""

    def call(self, step: str, name: str, version: int | None = None, /, **fields: Any) -> Any:
        """Send a request and note the response."""
        response = self.send(name, fields, version)
        self.note(step, response)
        return response

    def note(self, step: str, response: Message) -> None:
        """Note a response, to be compared."""
        self.seen.append((step, self._comparable(response)))

    def send(self, name: str, fields: Mapping[str, Any], version: int | None = None) -> Any:
        """Send a request whose response is not compared."""
        sent = self.versions[name] if version is None else version
        return self.connection.call(request(name, sent, fields), sent)

    @staticmethod
    def until(condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            assert time.monotonic() < deadline, f"timed out after {SECONDS_MAX} s"
            time.sleep(PAUSE_SECONDS)

    def _comparable(self, value: Any) -> Any:
        """Return a response without what is different on every broker: ids, names, hosts, texts of errors."""
        if isinstance(value, Message) or hasattr(value, "fields"):
            names = (name for name in value.fields if name not in self.not_compared)
            return {name: self._comparable(getattr(value, name)) for name in names}
        if isinstance(value, tuple | list):
            return [self._comparable(item) for item in value]
        return self._names.get(value, value) if isinstance(value, bytes | str) else value


S = TypeVar("S", bound=GroupScenario)


def compare(scenarios: list[S], script: Callable[[S], None]) -> None:
    """Run a script on headrace and on Apache Kafka; every response that was noted must be the same."""
    for scenario in scenarios:
        script(scenario)
    ours, theirs = (scenario.seen for scenario in scenarios)
    assert len(ours) == len(theirs)
    unequal = [
        f"{step}:\n  headrace {mine}\n  Apache   {other}"
        for (step, mine), (_, other) in zip(ours, theirs, strict=True)
        if mine != other
    ]
    assert not unequal, "\n".join(unequal)
