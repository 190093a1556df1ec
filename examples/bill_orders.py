"""Read orders and write invoices exactly once: invoices and offsets are committed in one transaction.

Kill it at any time and restart it: read_committed consumers see one invoice for every order.

    python produce_orders.py                  # creates the orders
    python bill_orders.py
"""

import json
import os

from headrace import GroupMetadata, Producer
from headrace.client.admin import AdminClient
from headrace.client.fetcher import Fetcher

BOOTSTRAP = os.environ.get("BOOTSTRAP", "localhost:9092")
SOURCE, TARGET, GROUP = "orders", "invoices", "billing"

# If two instances run with the same transactional id, the second one fences the first, which fails.
with Producer(bootstrap_servers=BOOTSTRAP, transactional_id="billing-1", value_serializer="json") as producer:
    producer.init_transactions()  # ends the open transaction of a previous instance
    partitions = [(SOURCE, part.partition) for part in producer.partitions_for(SOURCE)]

    with AdminClient(BOOTSTRAP) as admin:
        committed = admin.list_group_offsets(GROUP)
    with Fetcher(BOOTSTRAP) as fetcher:
        start = fetcher.beginning_offsets(partitions)
        start |= {tp: offset.offset for tp, offset in committed.items() if tp in start}
        fetcher.assign(start, until=fetcher.end_offsets(partitions))
        billed = 0
        while not fetcher.is_finished():
            records = fetcher.poll(timeout_ms=1000)
            if not records:
                continue
            with producer.transaction():  # an exception aborts both invoices and offsets
                for record in records:
                    order = json.loads(record.value)
                    producer.send(TARGET, {"order": order["id"], "due": order["amount"]}, key=record.key)
                offsets = {(record.topic, record.partition): record.offset + 1 for record in records}
                producer.send_offsets_to_transaction(offsets, GroupMetadata(GROUP))
            billed += len(records)

print(f"{billed} invoices written")
