"""Where the demo writes: a broker of our own, which may be killed, or a cluster that somebody named, which may not."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from headrace.broker import EmbeddedBroker, control
from headrace.client.admin.topics import NewTopic, TopicAdmin
from headrace.client.blocking import BlockingClient, ClientSettings
from headrace.demo.orders import decision_topic
from headrace.errors import HeadraceError
from headrace.spark.consumer_options import CONSUMER_OPTIONS, client_settings
from headrace.types import TopicPartition

BOOTSTRAP = "bootstrap.servers"
CLIENT_ID = "headrace-demo"
PARTITIONS = 4
ADMIN_MS_MAX = 20_000
# A small broker for one query: fifty partitions for its transactions would only take time to make.
_OPTIONS = {"transaction.state.log.num.partitions": 4, "offsets.topic.num.partitions": 4}


class Cluster:
    """The topic of the demo, and the broker that has it."""

    def __init__(self, folder: Path, options: Mapping[str, str], *, keep: bool) -> None:
        """`options` for clients, by Kafka's names. Without bootstrap.servers, a broker with its data in `folder`."""
        is_given = BOOTSTRAP in options
        self._embedded = None if is_given else EmbeddedBroker(_OPTIONS, data_dir=folder)
        self._options = dict(options)
        self._keep = keep
        self._made: list[str] = []
        self.topic = f"headrace-demo-{uuid.uuid4().hex[:8]}" if is_given else "orders"

    @property
    def options(self) -> dict[str, str]:
        """For clients; with bootstrap.servers, once it is started."""
        return self._options if self._embedded is None else {**self._options, BOOTSTRAP: self._embedded.bootstrap}

    def client_settings(self, timeout_ms: int) -> ClientSettings:
        """For clients that ask and wait."""
        given = {name: value for name, value in self.options.items() if name in CONSUMER_OPTIONS}
        return replace(client_settings(CONSUMER_OPTIONS.resolve(("argument", given)), CLIENT_ID), timeout_ms=timeout_ms)

    @property
    def broker(self) -> EmbeddedBroker | None:
        """The one that may be killed, if there is one."""
        return self._embedded

    @property
    def name(self) -> str:
        return f"the cluster at {self._options[BOOTSTRAP]}" if self._embedded is None else "a broker of headrace's"

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in range(PARTITIONS)]

    def __enter__(self) -> Self:
        if self._embedded is not None:
            self._embedded.start()
        try:
            with BlockingClient(self.client_settings(ADMIN_MS_MAX)) as client:
                TopicAdmin(client).create_topics([NewTopic(self.topic, PARTITIONS)])
            self._made = [self.topic, decision_topic(self.topic)]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill_broker(self) -> int:
        """Ours, with signal 9; the number that its process had."""
        broker = self._embedded
        assert broker is not None
        assert broker.pid is not None
        pid, facts = broker.pid, control.read_run_file(broker.data_dir)
        broker.kill()
        # Where the folder's path is too long for a socket's, a killed broker leaves one elsewhere.
        if facts is not None and (folder := Path(facts["control"]).parent) != broker.data_dir:
            shutil.rmtree(folder, ignore_errors=True)
        return pid

    def close(self) -> None:
        """The broker is stopped; of a cluster that is not ours, what we have made is removed."""
        if self._embedded is not None:
            self._embedded.close()
            return
        made, self._made = self._made, []
        for topic in made if not self._keep else ():
            # The decision topic is made by the first commit: there may be none.
            with suppress(HeadraceError), BlockingClient(self.client_settings(ADMIN_MS_MAX)) as client:
                TopicAdmin(client).delete_topics([topic])
