"""Consume, transform, produce, exactly once: a worker that tests kill.

python -m tests.support.copying_worker BOOTSTRAP GROUP SOURCE TARGET TRANSACTIONAL_ID
"""

from __future__ import annotations

import sys

from headrace import AbortableError, Consumer, Producer


def main(bootstrap: str, group: str, source: str, target: str, transactional_id: str) -> None:
    producer = Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    producer.init_transactions()
    consumer = Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id="copier",  # so that the next worker takes over at once
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        session_timeout_ms=6000,
        heartbeat_interval_ms=200,
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
