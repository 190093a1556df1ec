"""A Spark stream: JSON files → large orders → a topic, exactly once; then an audit of the result.

Kill it at any time (kill -9) and restart it: it resumes from its checkpoint, and the audit still prints "equal".

    headrace broker start                     # in another terminal; or any Kafka, with BOOTSTRAP=host:port
    python stream_orders.py
"""

import os
from pathlib import Path

from headrace.client.admin import AdminClient, NewTopic
from headrace.spark import audit, session

BOOTSTRAP = os.environ.get("BOOTSTRAP", "localhost:9092")
FOLDER = Path(os.environ.get("FOLDER", "stream-orders")).absolute()
TOPIC = "large-orders"
SCHEMA = "id BIGINT, customer STRING, amount DOUBLE"

with AdminClient(BOOTSTRAP) as admin:
    if TOPIC not in admin.list_topics():
        admin.create_topics([NewTopic(TOPIC, partitions=3)])

spark = session("stream-orders", "local[2]", {"spark.sql.shuffle.partitions": 4})
incoming = str(FOLDER / "incoming")
if not Path(incoming).exists():
    orders = spark.range(0, 20_000, 1, 4).selectExpr(
        "id", "concat('customer-', id % 100) AS customer", "CAST(id % 1000 AS DOUBLE) AS amount"
    )
    orders.write.json(incoming)


def records(frame):
    """Select key and value, for the stream and for the audit."""
    return frame.where("amount >= 500").selectExpr("customer AS key", "to_json(struct(*)) AS value")


source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).json(incoming)
sink = records(source).writeStream.format("headrace").option("kafka.bootstrap.servers", BOOTSTRAP)
sink = sink.option("topic", TOPIC).option("checkpointLocation", str(FOLDER / "checkpoint"))
sink.trigger(availableNow=True).start().awaitTermination()

sent = records(spark.read.schema(SCHEMA).json(incoming))
report = audit(sent, TOPIC, options={"kafka.bootstrap.servers": BOOTSTRAP})
print("equal" if report else "different", report.to_json())
spark.stop()
raise SystemExit(0 if report else 1)
