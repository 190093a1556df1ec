"""Sink and source on the installed Spark: python version_smoke.py '{"bootstrap": …, "topics": […], "folder": …}'.

Prints the results as JSON: see test_spark_versions.py.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ROWS = 2000
STREAM_SECONDS_MAX = 120


def main(job: dict[str, Any]) -> dict[str, Any]:
    import pyspark
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("headrace-version-smoke")
    for name, value in (
        ("spark.ui.enabled", "false"),
        ("spark.driver.bindAddress", "127.0.0.1"),
        ("spark.driver.host", "127.0.0.1"),
        ("spark.sql.shuffle.partitions", "2"),
        ("spark.sql.warehouse.dir", f"{job['folder']}/warehouse"),
    ):
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    servers = {"kafka.bootstrap.servers": job["bootstrap"]}
    inline, parallel, streamed, copied = job["topics"]
    frame = spark.range(0, ROWS, 1, 2).selectExpr("CAST(id % 10 AS STRING) key", "CAST(id AS STRING) value")

    def read(topic: str) -> list[int]:
        rows = spark.read.format("headrace").options(**servers, subscribe=topic).load()
        return sorted(int(row[0]) for row in rows.selectExpr("CAST(value AS STRING)").collect())

    def stream(source: str, target: str) -> str:
        rows = spark.readStream.format("headrace").options(**servers, subscribe=source, startingOffsets="earliest")
        writer = rows.load().select("key", "value").writeStream.format("headrace").options(**servers, topic=target)
        writer = writer.option("checkpointLocation", f"{job['folder']}/{target}").trigger(availableNow=True)
        try:
            query = writer.start()
            query.awaitTermination(STREAM_SECONDS_MAX)
        except Exception as error:
            return str(error)
        return ""

    def read_stream(topic: str) -> list[int]:
        source = spark.readStream.format("headrace").options(**servers, subscribe=topic, startingOffsets="earliest")
        rows = source.load().selectExpr("CAST(value AS STRING) AS value").writeStream.format("memory")
        query = rows.queryName("rows_of_a_stream").trigger(availableNow=True).start()
        query.awaitTermination(STREAM_SECONDS_MAX)
        return sorted(int(row[0]) for row in spark.table("rows_of_a_stream").collect())

    python = ".".join(map(str, sys.version_info[:2]))
    result: dict[str, Any] = {"version": pyspark.__version__, "python": python}
    for topic, mode in ((inline, "inline"), (parallel, "parallel")):
        options = {**servers, "topic": topic, "commit.mode": mode, "write.id": topic}
        for _ in range(2):  # with the same write.id: the second delivers nothing
            frame.write.format("headrace").options(**options).mode("append").save()
        result[mode] = read(topic) == list(range(ROWS))
    result["read stream"] = read_stream(parallel) == list(range(ROWS))
    result["stream error"] = stream(parallel, streamed)
    if not result["stream error"]:
        result["streamed"] = read(streamed) == list(range(ROWS))
        result["stream error"] = stream(streamed, copied)
        result["copied"] = read(copied) == list(range(ROWS))
    spark.stop()
    return result


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
