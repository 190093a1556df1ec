"""The cluster that the demo writes to, and the rows that become visible in it.

DemoCluster   the demo's own broker, which is killed, or a cluster of the user, which is not
VisibleRows   a thread that reads the topic with read_committed and counts rows
OpenRecords   the number of records in open transactions
"""

from __future__ import annotations

import itertools
import shutil
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from headrace.broker import EmbeddedBroker, control
from headrace.client.admin.topics import NewTopic, TopicAdmin
from headrace.client.blocking import BlockingClient, ClientSettings
from headrace.client.fetcher import Fetcher
from headrace.client.offsets import LATEST, Isolation, list_offsets
from headrace.demo.orders import decision_topic
from headrace.errors import HeadraceError
from headrace.spark.consumer_options import CONSUMER_OPTIONS, client_settings
from headrace.types import TopicPartition

BOOTSTRAP = "bootstrap.servers"
CLIENT_ID = "headrace-demo"
PARTITIONS = 4
ADMIN_MS_MAX = 20_000
POLL_MS = 100
RETRY_SECONDS = 0.1
UNREADABLE_SECONDS_MAX = 60.0
SAMPLE_SECONDS = 0.2
SAMPLES_MAX = 5_000
JOIN_SECONDS_MAX = 10.0
TIMEOUT_MS = 1_000
"""Of the clients of VisibleRows and OpenRecords, after which a broker counts as down."""
# One query needs few partitions of the internal topics; creating the default of fifty takes time.
_BROKER_OPTIONS = {"transaction.state.log.num.partitions": 4, "offsets.topic.num.partitions": 4}


class DemoCluster:
    """The topic of the demo, and the broker or cluster that holds it."""

    def __init__(self, folder: Path, options: Mapping[str, str], *, keep: bool) -> None:
        """`options` are client options. Without bootstrap.servers, a broker is started with its data in `folder`."""
        is_given = BOOTSTRAP in options
        self._embedded = None if is_given else EmbeddedBroker(_BROKER_OPTIONS, data_dir=folder)
        self._options = dict(options)
        self._keep = keep
        self._created_topics: list[str] = []
        self.topic = f"headrace-demo-{uuid.uuid4().hex[:8]}" if is_given else "orders"

    @property
    def options(self) -> dict[str, str]:
        """Client options, with bootstrap.servers once the broker has started."""
        return self._options if self._embedded is None else {**self._options, BOOTSTRAP: self._embedded.bootstrap}

    def client_settings(self, timeout_ms: int) -> ClientSettings:
        """Return the settings of blocking clients."""
        given = {name: value for name, value in self.options.items() if name in CONSUMER_OPTIONS}
        return replace(client_settings(CONSUMER_OPTIONS.resolve(("argument", given)), CLIENT_ID), timeout_ms=timeout_ms)

    @property
    def broker(self) -> EmbeddedBroker | None:
        """The demo's own broker, or None for a cluster of the user."""
        return self._embedded

    @property
    def name(self) -> str:
        return f"the cluster at {self._options[BOOTSTRAP]}" if self._embedded is None else "a headrace broker"

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in range(PARTITIONS)]

    def __enter__(self) -> Self:
        if self._embedded is not None:
            self._embedded.start()
        try:
            with BlockingClient(self.client_settings(ADMIN_MS_MAX)) as client:
                TopicAdmin(client).create_topics([NewTopic(self.topic, PARTITIONS)])
            self._created_topics = [self.topic, decision_topic(self.topic)]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill_broker(self) -> int:
        """Kill the demo's broker with SIGKILL, and return its pid."""
        broker = self._embedded
        assert broker is not None
        assert broker.pid is not None
        pid, socket_folder = broker.pid, self.socket_folder()
        broker.kill()
        if socket_folder is not None:
            shutil.rmtree(socket_folder, ignore_errors=True)
        return pid

    def socket_folder(self) -> Path | None:
        """Return the folder of the broker's control socket, which a killed broker leaves, or None.

        The broker creates one outside its data folder if the path of that is too long for a socket.
        """
        run_file = None if self._embedded is None else control.read_run_file(self._embedded.data_dir)
        if self._embedded is None or run_file is None:
            return None
        folder = Path(run_file["control"]).parent
        return None if folder == self._embedded.data_dir else folder

    def close(self) -> None:
        """Stop the demo's broker, or delete the topics created in the user's cluster."""
        if self._embedded is not None:
            self._embedded.close()
            return
        topics, self._created_topics = self._created_topics, []
        for topic in topics if not self._keep else ():
            # The decision topic may be missing: the first commit creates it.
            with suppress(HeadraceError), BlockingClient(self.client_settings(ADMIN_MS_MAX)) as client:
                TopicAdmin(client).delete_topics([topic])


class Sample(NamedTuple):
    """The number of visible rows at a time of the monotonic clock."""

    at_s: float
    rows: int


class VisibleRows:
    """Counts the rows that a read_committed consumer receives, in a thread; survives restarts of brokers."""

    def __init__(self, settings: ClientSettings, partitions: Sequence[TopicPartition]) -> None:
        self._settings = settings
        self._positions = dict.fromkeys(partitions, 0)  # Reader thread only.
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-demo-reader", daemon=True)
        self.count = 0
        self.samples: list[Sample] = []
        self.error: HeadraceError | None = None

    def first_increase_after(self, monotonic_s: float) -> float | None:
        """Return when the count first increased after a time, or None if it has not."""
        samples = list(self.samples)
        for previous, sample in itertools.pairwise(samples):
            if sample.at_s > monotonic_s and sample.rows > previous.rows:
                return sample.at_s
        return None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join(JOIN_SECONDS_MAX)

    def _run(self) -> None:
        failing_since_s: float | None = None
        while not self._closed.is_set():
            try:
                with BlockingClient(self._settings) as client:
                    fetcher = Fetcher(client, max_wait_ms=POLL_MS)
                    fetcher.assign(self._positions)
                    failing_since_s = None
                    self._count(fetcher)
            except HeadraceError as error:
                failing_since_s = failing_since_s or time.monotonic()
                if time.monotonic() - failing_since_s > UNREADABLE_SECONDS_MAX:
                    self.error = error
                    return
                self._sample()
                self._closed.wait(RETRY_SECONDS)

    def _count(self, fetcher: Fetcher) -> None:
        while not self._closed.is_set():
            for tp, batches in fetcher.poll_batches(POLL_MS).items():
                self.count += sum(batch.header.record_count for batch in batches)
                self._positions[tp] = fetcher.position(tp)
            self._sample()

    def _sample(self) -> None:
        """Record a sample if the count has changed, or the last sample is old."""
        now_s = time.monotonic()
        last = self.samples[-1] if self.samples else None
        if last is None or self.count != last.rows or now_s - last.at_s >= SAMPLE_SECONDS:
            self.samples.append(Sample(now_s, self.count))
        if len(self.samples) > SAMPLES_MAX:
            del self.samples[1:-1:2]


class OpenRecords:
    """Counts the records that are written but not yet visible to read_committed consumers."""

    def __init__(self, settings: ClientSettings, partitions: Sequence[TopicPartition]) -> None:
        self._client = BlockingClient(settings)
        self._partitions = dict.fromkeys(partitions, LATEST)

    def count(self) -> int:
        """Return the count, or 0 if no broker responds."""
        with suppress(HeadraceError):
            # In this order: records committed between the two requests do not count as open.
            ends = list_offsets(self._client, self._partitions, Isolation.READ_UNCOMMITTED)
            stable = list_offsets(self._client, self._partitions, Isolation.READ_COMMITTED)
            return sum(max(0, ends[tp].offset - stable[tp].offset) for tp in self._partitions)
        return 0

    def close(self) -> None:
        self._client.close()
