"""Writes transactions until it is killed. Arguments: bootstrap, transactional id, topic, number of the round.

Each transaction has RECORDS records over PARTITIONS partitions, named `round:transaction:number`. A line is printed for
each committed transaction. Every third is aborted; its records have other names.
"""

from __future__ import annotations

import itertools
import sys

from headrace import Producer

RECORDS = 30
PARTITIONS = 3


def main(bootstrap: str, transactional_id: str, topic: str, round_number: str) -> None:
    producer = Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id, batch_size=200, linger_ms=1)
    producer.init_transactions()
    print("ready", flush=True)
    for transaction in itertools.count():
        aborts = transaction % 3 == 2
        producer.begin_transaction()
        for number in range(RECORDS):
            name = f"{'aborted' if aborts else round_number}:{transaction}:{number}"
            producer.send(topic, name.encode(), partition=number % PARTITIONS)
        if aborts:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            print(f"{round_number}:{transaction}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
