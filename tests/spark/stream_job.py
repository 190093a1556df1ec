"""A streaming query in a process of its own, to be killed: files of text in, a topic out.

    python stream_job.py '{"bootstrap": …, "topic": …, "source": folder, "checkpoint": folder, "options": {…}}'

Every file is a batch, every line a row: "key value". It ends when all files are done (exit code 0), with the error of
the query (exit code 1, the text on standard error), or by being killed. Failpoints come by `options`; see `crashes.py`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

SECONDS_MAX = 150


def main(job: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(job.get("master", "local[2,3]")).appName("headrace-stream-job")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": os.path.join(job["checkpoint"], "..", "warehouse"),
        "spark.sql.streaming.numRecentProgressUpdates": "10",
        "spark.sql.adaptive.enabled": "false",
        **job.get("settings", {}),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(job["source"])
    columns = ["split_part(value, ' ', 1) AS key", "value"]
    writer = (
        rows.repartition(job.get("tasks", 2))
        .selectExpr(*columns)
        .writeStream.format("headrace")
        .option("kafka.bootstrap.servers", job["bootstrap"])
        .option("topic", job["topic"])
        .option("checkpointLocation", job["checkpoint"])
        .trigger(availableNow=True)
    )
    for name, value in job.get("options", {}).items():
        writer = writer.option(name, value)
    query = writer.start()
    if not query.awaitTermination(SECONDS_MAX):
        raise TimeoutError(f"the query has not ended within {SECONDS_MAX} s: {query.status}")
    print(json.dumps([progress.batchId for progress in query.recentProgress]))


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except Exception as error:
        # Short: what a test looks for, not the traces of three languages.
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)  # what is left of a killed JVM must not keep us
