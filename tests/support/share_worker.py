"""A process with a share consumer, of confluent-kafka or of headrace: it prints every record that it accepts.

python -m tests.support.share_worker CLIENT BOOTSTRAP GROUP TOPIC

Two lines for each poll, as JSON: `["try", values]` before the acknowledgements are sent, and `["done", values]` when
the brokers have persisted them. It ends with its standard input.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from confluent_kafka import KafkaException
from confluent_kafka import ShareConsumer as ConfluentShareConsumer

from headrace import HeadraceError, ShareConsumer

POLL_SECONDS = 0.5
COMMIT_SECONDS_MAX = 10.0


class Value(NamedTuple):
    """The value of a record, and its partition."""

    partition: int
    text: str


class Client(Protocol):
    """A share consumer in explicit mode."""

    def poll(self) -> list[Value]:
        """Return records, and mark them as accepted."""

    def commit(self) -> set[int]:
        """Commit; return the partitions that failed."""

    def close(self) -> None: ...


class ConfluentClient:
    """confluent-kafka's share consumer."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = ConfluentShareConsumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
        )
        self._consumer.subscribe([topic])

    def poll(self) -> list[Value]:
        values = []
        for message in self._consumer.poll(POLL_SECONDS) or []:
            if message.error() is None:
                self._consumer.acknowledge(message)
                values.append(Value(message.partition() or 0, (message.value() or b"").decode()))
        return values

    def commit(self) -> set[int]:
        results = self._consumer.commit_sync(COMMIT_SECONDS_MAX)
        return {row.partition for row, error in results.items() if error is not None}

    def close(self) -> None:
        self._consumer.close()


class HeadraceClient:
    """headrace's share consumer."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = ShareConsumer(
            bootstrap_servers=bootstrap, group_id=group, share_acknowledgement_mode="explicit"
        )
        self._consumer.subscribe([topic])

    def poll(self) -> list[Value]:
        records = self._consumer.poll(POLL_SECONDS)
        for record in records:
            self._consumer.acknowledge(record)
        return [Value(record.partition, record.value.decode()) for record in records]

    def commit(self) -> set[int]:
        results = self._consumer.commit_sync(COMMIT_SECONDS_MAX)
        return {name.partition for name, error in results.items() if error is not None}

    def close(self) -> None:
        self._consumer.close()


CLIENTS: dict[str, Callable[[str, str, str], Client]] = {"confluent": ConfluentClient, "headrace": HeadraceClient}


def main(client: str, bootstrap: str, group: str, topic: str) -> None:
    """Poll and accept until the standard input is closed."""
    stopping = threading.Event()
    threading.Thread(target=wait_for_end, args=[stopping], daemon=True).start()
    consumer = CLIENTS[client](bootstrap, group, topic)
    while not stopping.is_set():
        try:
            for line in accept(consumer):
                print(json.dumps(line), flush=True)
        except (KafkaException, HeadraceError) as error:  # a broker was killed: the records may come again
            print(f"{client}: {error}", file=sys.stderr, flush=True)
    consumer.close()


def wait_for_end(stopping: threading.Event) -> None:
    sys.stdin.read()
    stopping.set()


def accept(consumer: Client) -> Iterator[tuple[str, list[str]]]:
    """Poll, accept and commit; yield what is sent and what is persisted."""
    values = consumer.poll()
    if values:
        yield "try", [value.text for value in values]
        failed = consumer.commit()
        yield "done", [value.text for value in values if value.partition not in failed]


if __name__ == "__main__":
    main(*sys.argv[1:])
