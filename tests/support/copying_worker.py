"""Consume, transform, produce, exactly once: a worker that tests kill, pause and cut off.

    python -m tests.support.copying_worker --bootstrap B --group G --source S --target T --worker NAME …

Each record of the source is copied to the partition of the target with its number. Lines on stdout: `assigned N` after
a rebalance, `copied N` after a commit, `aborted REASON`, and `failed REASON` before it ends with an error.
"""

from __future__ import annotations

import argparse
import logging
import sys

from headrace import AbortableError, Consumer, HeadraceError, Producer, RebalanceListener

PREFIX = b"copy of "
POLL_SECONDS = 0.2
RECORDS_MAX = 50
REQUEST_MS = 3_000
HEARTBEAT_MS = 300
BLOCK_MS = 10_000
TRANSACTION_MS = 20_000


def say(text: str) -> None:
    if text.startswith(("assigned", "aborted", "failed")):
        logging.info("%s", text)
    print(" ".join(text.split()), flush=True)


class Report(RebalanceListener):
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def on_assigned(self, partitions: object) -> None:
        say(f"assigned {len(self._consumer.assignment())}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "group", "source", "target", "worker"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--protocol", default="classic")
    parser.add_argument("--session-ms", type=int, default=6_000)
    parser.add_argument("--static", action="store_true", help="be a static member")
    parser.add_argument("--hold", action="store_true", help="wait for a line in the first transaction")
    return parser.parse_args()


def work(arguments: argparse.Namespace, producer: Producer, consumer: Consumer) -> None:
    producer.init_transactions()
    consumer.subscribe([arguments.source], listener=Report(consumer))
    is_held = arguments.hold
    while True:
        records = consumer.poll(POLL_SECONDS)
        if not records:
            continue
        try:
            with producer.transaction():
                for record in records:
                    producer.send(arguments.target, PREFIX + record.value, partition=record.partition)
                if is_held:
                    is_held = False
                    producer.flush()
                    say(f"holding {len(records)}")
                    sys.stdin.readline()
                producer.send_offsets_to_transaction(consumer)
            say(f"copied {len(records)}")
        except AbortableError as error:
            say(f"aborted {error}")
            consumer.seek_to_committed()


def main() -> int:
    arguments = parse()
    logging.basicConfig(format="%(asctime)s %(process)d %(message)s", level=logging.INFO)
    session = {"session.timeout.ms": arguments.session_ms, "heartbeat.interval.ms": HEARTBEAT_MS}
    if arguments.protocol == "consumer":  # the broker sets them
        session = {}
    try:
        with (
            Producer(
                bootstrap_servers=arguments.bootstrap,
                client_id=f"{arguments.worker}-producer",
                transactional_id=f"{arguments.group}-{arguments.worker}",
                transaction_timeout_ms=TRANSACTION_MS,
                request_timeout_ms=REQUEST_MS,
                delivery_timeout_ms=BLOCK_MS,
                max_block_ms=BLOCK_MS,
            ) as producer,
            Consumer(
                {
                    "bootstrap.servers": arguments.bootstrap,
                    "group.id": arguments.group,
                    "group.protocol": arguments.protocol,
                    "group.instance.id": arguments.worker if arguments.static else None,
                    "client.id": arguments.worker,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    "request.timeout.ms": REQUEST_MS,
                    "default.api.timeout.ms": BLOCK_MS,
                    "max.poll.records": RECORDS_MAX,
                    **session,
                }
            ) as consumer,
        ):
            work(arguments, producer, consumer)
    except HeadraceError as error:
        say(f"failed {type(error).__name__}: {error}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
