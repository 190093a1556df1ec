"""Runs what most tests with Spark run, in a JVM with the given options: python spark_classes.py OPTIONS.

The JVM writes an archive of the classes that it has loaded (tests/support/peers/class_archive.py).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

JVM_SECONDS_MAX = 60


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraJavaOptions", sys.argv[1])
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "lines").mkdir()
        Path(folder, "lines", "1.txt").write_text("a 1\nb 2\n")
        spark.createDataFrame([(1, "a"), (2, "b")], "number LONG, text STRING").groupBy("text").count().collect()
        rows = spark.readStream.text(str(Path(folder, "lines"))).selectExpr("split_part(value, ' ', 1) AS key")
        query = (
            rows.repartition(2, "key")
            .writeStream.format("memory")
            .queryName("rows")
            .option("checkpointLocation", str(Path(folder, "checkpoint")))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        gateway = spark.sparkContext._gateway
        spark.stop()
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(JVM_SECONDS_MAX)


if __name__ == "__main__":
    main()
