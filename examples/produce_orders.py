"""Send orders as JSON, keyed by customer, and check the result of each.

headrace broker start                     # in another terminal; or any Kafka, with BOOTSTRAP=host:port
python produce_orders.py
"""

import os

from headrace import HeadraceError, Producer, RecordMetadata

BOOTSTRAP = os.environ.get("BOOTSTRAP", "localhost:9092")
failed = []


def delivered(metadata: RecordMetadata | None, error: Exception | None) -> None:
    """Called once for every record, on the producer's I/O thread; it must be fast."""
    if error is not None:
        failed.append(error)


with Producer(
    bootstrap_servers=BOOTSTRAP,
    key_serializer="str",
    value_serializer="json",
    compression_type="lz4",
    linger_ms=10,  # time for a batch to fill
) as producer:
    for number in range(10_000):
        order = {"id": number, "customer": f"customer-{number % 100}", "amount": 1 + number % 50}
        try:
            producer.send("orders", order, key=order["customer"], on_delivery=delivered)
        except HeadraceError as error:  # not queued: too large, unknown topic, or buffer full
            failed.append(error)
    producer.flush(timeout=60)
    sent = {name.name: value for name, value in producer.metrics().items() if name.group == "producer-metrics"}

print(f"{sent['record-send-total']:.0f} orders sent, {len(failed)} failed")
for error in failed[:10]:
    print(error)
raise SystemExit(1 if failed else 0)
