"""The headrace broker with the interface of peers/broker.py."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker import EmbeddedBroker
from tests.support.peers import broker


class OwnBroker(broker.Broker):
    """An `EmbeddedBroker` with the `Broker` interface; `embedded` has its other methods."""

    def __init__(self, embedded: EmbeddedBroker) -> None:
        self.embedded = embedded

    @property
    def bootstrap(self) -> str:
        return self.embedded.bootstrap

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def pid(self) -> int | None:
        """The id of the running process."""
        return self.embedded.pid

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        return broker.create_topic(self.bootstrap, name, partitions, configs)

    def kill(self) -> None:
        self.embedded.kill()

    def stop(self) -> None:
        self.embedded.stop()

    def restart(self) -> None:
        self.embedded.restart()

    def remove(self) -> None:
        """Stop the process and delete its data."""
        self.embedded.close()
