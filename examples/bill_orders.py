"""Read orders, write invoices, exactly once: results and read positions are committed in one transaction.

Kill it where you like and start it again: every order gets one invoice. Readers of committed records see nothing else.

    python produce_orders.py                  # something to read
    python bill_orders.py
"""

import json
import os

from headrace import GroupMetadata, Producer
from headrace.client.admin import AdminClient
from headrace.client.fetcher import Fetcher

BOOTSTRAP = os.environ.get("BOOTSTRAP", "localhost:9092")
SOURCE, TARGET, GROUP = "orders", "invoices", "billing"

# Of two that run at once, the second shuts out the first, which ends with an error: the id says who is who.
with Producer(bootstrap_servers=BOOTSTRAP, transactional_id="billing-1", value_serializer="json") as producer:
    producer.init_transactions()  # what an instance before us has left open is over when this returns
    partitions = [(SOURCE, part.partition) for part in producer.partitions_for(SOURCE)]

    with AdminClient(BOOTSTRAP) as admin:
        committed = admin.list_group_offsets(GROUP)
    with Fetcher(BOOTSTRAP) as fetcher:
        start = fetcher.beginning_offsets(partitions)
        start |= {place: found.offset for place, found in committed.items() if place in start}
        fetcher.assign(start, until=fetcher.end_offsets(partitions))
        billed = 0
        while not fetcher.is_finished():
            records = fetcher.poll(timeout_ms=1000)
            if not records:
                continue
            with producer.transaction():  # an exception aborts it: then neither invoices nor positions are there
                for record in records:
                    order = json.loads(record.value)
                    producer.send(TARGET, {"order": order["id"], "due": order["amount"]}, key=record.key)
                positions = {(record.topic, record.partition): record.offset + 1 for record in records}
                producer.send_offsets_to_transaction(positions, GroupMetadata(GROUP))
            billed += len(records)

print(f"{billed} invoices written")
