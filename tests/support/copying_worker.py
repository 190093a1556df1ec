"""Consume, transform, produce, exactly once: a worker that tests kill.

python -m tests.support.copying_worker BOOTSTRAP GROUP SOURCE TARGET TRANSACTIONAL_ID [PROTOCOL]
"""

from __future__ import annotations

import sys

from headrace import AbortableError, Consumer, Producer

OPTIONS: dict[str, dict[str, object]] = {
    # A static member, so that the next worker takes over at once.
    "classic": {"group.instance.id": "copier", "session.timeout.ms": 6000, "heartbeat.interval.ms": 200},
    # The broker does not release the instance id of a static member before its session ends.
    "consumer": {"group.protocol": "consumer"},
}


def main(
    bootstrap: str, group: str, source: str, target: str, transactional_id: str, protocol: str = "classic"
) -> None:
    producer = Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    producer.init_transactions()
    consumer = Consumer(
        OPTIONS[protocol],
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_poll_records=50,
    )
    consumer.subscribe([source])
    while True:
        records = consumer.poll(0.2)
        if not records:
            continue
        try:
            with producer.transaction():
                for record in records:
                    producer.send(target, b"copy of " + record.value)
                producer.send_offsets_to_transaction(consumer.positions(), consumer)
        except AbortableError:
            # The group has rebalanced: read again from the committed offsets.
            committed = consumer.committed(consumer.assignment())
            for tp in consumer.assignment():
                consumer.seek(tp, committed[tp].offset if tp in committed else 0)
        print(len(records), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
