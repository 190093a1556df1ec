"""The orders of the demo, as Parquet files that are the same in every run, and the pipeline that sends them.

    write_orders → folder of files → Pipeline: one record per order, key customer → topic

The ids of a customer's orders increase, and their order is preserved: within a batch they are in one file, so in one
task, and in one partition of the topic. So the audit can detect lost and duplicated records, and records out of order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.spark.pipeline import Pipeline
from headrace.spark.pipeline_spec import (
    FORMAT,
    LiveView,
    MaskedOptions,
    PipelineSpec,
    Sink,
    Source,
    SparkSettings,
    Step,
    Trigger,
)

FILES_PER_BATCH = 2
"""One for each task, with half of the customers each."""
BATCH_ROWS = 25_000
"""Rows of a batch, within the limits of the number of batches."""
BATCHES_MIN, BATCHES_MAX = 12, 60
CUSTOMERS = 4096  # a power of two: customers are assigned with a bit mask
SCHEMA = "id BIGINT, customer STRING, amount DECIMAL(12,2), placed_at TIMESTAMP"
RECORDS = Step("records", "SELECT customer AS key, to_json(struct(*)) AS value FROM source")
ORDER = "CAST(get_json_object(CAST(value AS STRING), '$.id') AS BIGINT)"
"""Expression for the audit that must not decrease within a customer."""

_FIRST_ORDER_US = 1_767_225_600_000_000  # 2026-01-01
_BETWEEN_ORDERS_US = 250_000
_CENTS_MIN, _CENTS_MASK, _CENTS_SHIFT = 100, 0xFFFF, 12
_SPREAD = 2_654_435_761  # Knuth's multiplicative hash spreads customers and amounts
_FIRST_FILE_S = 1_767_225_600


def batch_count(rows: int) -> int:
    """Return the number of batches of a run."""
    return min(BATCHES_MAX, max(BATCHES_MIN, rows // BATCH_ROWS))


def write_orders(folder: Path, rows: int, on_batch: Callable[[int], None] = lambda rows: None) -> None:
    """Write all orders; `on_batch` is called with the number written after each batch, and may raise to stop."""
    folder.mkdir(parents=True)
    count = batch_count(rows)
    for batch in range(count):
        first, end = rows * batch // count, rows * (batch + 1) // count
        table = make_orders(first, end)
        half_of = pc.bit_wise_and(pc.utf8_slice_codeunits(table["customer"], 1).cast(pa.int64()), FILES_PER_BATCH - 1)
        for half in range(FILES_PER_BATCH):
            path = folder / f"orders-{batch:05d}-{half}.parquet"
            pq.write_table(table.filter(pc.equal(half_of, half)), path, compression="snappy")
            # Spark reads files in the order of their modification times, which would be almost equal.
            time_s = _FIRST_FILE_S + batch * FILES_PER_BATCH + half
            os.utime(path, (time_s, time_s))
        on_batch(end)


def make_orders(first: int, end: int) -> pa.Table:
    """Return the orders with the ids from `first` to `end`, exclusive."""
    ids = pa.array(range(first, end), pa.int64())
    spread = pc.bit_wise_and(pc.multiply(ids, _SPREAD), 0xFFFFFFFF)
    customers = pc.utf8_lpad(pc.bit_wise_and(spread, CUSTOMERS - 1).cast(pa.string()), 4, "0")
    cents = pc.add(pc.bit_wise_and(pc.shift_right(spread, _CENTS_SHIFT), _CENTS_MASK), _CENTS_MIN)
    times = pc.add(pc.multiply(ids, _BETWEEN_ORDERS_US), _FIRST_ORDER_US)
    return pa.table(
        {
            "id": ids,
            "customer": pc.binary_join_element_wise("c", customers, ""),
            "amount": pc.multiply(cents.cast(pa.decimal128(19, 0)), Decimal("0.01")).cast(pa.decimal128(12, 2)),
            "placed_at": times.cast(pa.timestamp("us", "UTC")),
        }
    )


def pipeline(
    source: Path,
    checkpoint: Path,
    client_options: Mapping[str, str],
    *,
    topic: str,
    spark: SparkSettings,
    view: LiveView | None = None,
) -> Pipeline:
    """Return the pipeline, which reads FILES_PER_BATCH files per batch."""
    options = {
        **{f"kafka.{name}": value for name, value in client_options.items()},
        "topic": topic,
        "decision.topic": decision_topic(topic),
        # Every task writes in its own transaction, as with batches that are too large for the driver.
        "commit.mode": "parallel",
    }
    return Pipeline(
        PipelineSpec(
            "headrace-demo",
            Source("parquet", str(source), SCHEMA, MaskedOptions({"maxFilesPerTrigger": str(FILES_PER_BATCH)})),
            Sink(FORMAT, checkpoint=str(checkpoint), options=MaskedOptions(options)),
            (RECORDS,),
            Trigger(),
            spark,
            view or LiveView(),
        )
    )


def decision_topic(topic: str) -> str:
    """Return the name of the demo's own decision topic, which is deleted with the topic."""
    return f"{topic}-decisions"
