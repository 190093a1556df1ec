"""Read orders and write invoices exactly once: invoices and offsets are committed in one transaction.

Kill it at any time and restart it, and run several of them: read_committed consumers see one invoice for every order.

    python produce_orders.py                  # creates the orders
    WORKER=1 python bill_orders.py            # and WORKER=2, in another terminal
"""

import os

from headrace import AbortableError, Consumer, Producer

BOOTSTRAP = os.environ.get("BOOTSTRAP", "localhost:9092")
WORKER = os.environ.get("WORKER", "1")  # of those that run at the same time; the same after a restart
IDLE_SECONDS = float(os.environ.get("IDLE_SECONDS", "10"))
SOURCE, TARGET, GROUP = "orders", "invoices", "billing"

with (
    Producer(
        bootstrap_servers=BOOTSTRAP,
        transactional_id=f"{GROUP}-{WORKER}",  # a second worker with this id fences the first, which fails
        value_serializer="json",
    ) as producer,
    Consumer(
        bootstrap_servers=BOOTSTRAP,
        group_id=GROUP,
        group_instance_id=WORKER,  # a restarted worker gets its partitions back at once
        enable_auto_commit=False,  # offsets are committed with the invoices
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        value_deserializer="json",
    ) as consumer,
):
    producer.init_transactions()  # ends the open transaction of a previous instance
    consumer.subscribe([SOURCE])
    billed = 0
    while orders := consumer.poll(timeout=IDLE_SECONDS):
        try:
            with producer.transaction():  # an exception aborts both invoices and offsets
                for order in orders:
                    invoice = {"order": order.value["id"], "due": order.value["amount"]}
                    producer.send(TARGET, invoice, key=order.key)
                producer.send_offsets_to_transaction(consumer)
            billed += len(orders)
        except AbortableError:  # for example: the group has given the partitions to another worker
            consumer.seek_to_committed()

print(f"{billed} invoices written")
