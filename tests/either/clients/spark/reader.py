"""Spark with its own Kafka connector: one command per line on standard input, one reply per line on standard output.

python reader.py JAR,JAR,…
"""

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession


def rows(spark: SparkSession, command: dict[str, Any]) -> dict[str, Any]:
    """All rows of a topic that a reader of what is committed sees, by partition and offset."""
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", command["bootstrap"])
        .option("kafka.isolation.level", command["isolation"])
        .option("subscribe", command["topic"])
        .option("includeHeaders", "true")
        .load()
    )
    rows = frame.selectExpr(
        "partition", "offset", "CAST(key AS STRING) key", "CAST(value AS STRING) value", "unix_millis(timestamp) time"
    )
    return {"rows": [list(row) for row in rows.orderBy("partition", "offset").collect()]}


def streamed(spark: SparkSession, command: dict[str, Any]) -> dict[str, Any]:
    """The values that a stream from the beginning reads until it has caught up."""
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", command["bootstrap"])
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", command["topic"])
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("CAST(value AS STRING) value")
        .writeStream.format("memory")
        .queryName("streamed")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(command["seconds_max"])
    return {"values": sorted(row.value for row in spark.table("streamed").collect())}


def written(spark: SparkSession, command: dict[str, Any]) -> dict[str, Any]:
    """Write texts to a topic by the connector's sink."""
    frame = spark.createDataFrame([(text,) for text in command["texts"]], "value STRING")
    options = {"kafka.bootstrap.servers": command["bootstrap"], "topic": command["topic"]}
    frame.coalesce(1).write.format("kafka").options(**options).save()
    return {"count": len(command["texts"])}


COMMANDS = {"rows": rows, "streamed": streamed, "written": written}


def main() -> None:
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of Spark and Java is not a reply
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", sys.argv[1])
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        command = json.loads(line)
        try:
            response = COMMANDS[command["do"]](spark, command)
        except Exception as error:
            response = {"error": str(error)}
        responses.write(json.dumps(response) + "\n")
        responses.flush()


main()
