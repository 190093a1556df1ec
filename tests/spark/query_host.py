"""A Spark driver that a test controls through its standard input: many streaming queries in one JVM.

    {"do": "open", "master": …, "settings": {…}}           → {"jvm": pid, "session": pid}
    {"do": "start", "name": …, "source": folder, "checkpoint": folder, "options": {…}, "tasks": 3}   → {"run": …}
    {"do": "stream", "name": …, "source": {…}, "columns": […], "checkpoint": folder, "options": {…}, "tasks": 2}   → {}
    {"do": "stop", "name": …}                              → {}, when the query has ended
    {"do": "states"}                                       → {name: null while it runs, "" when done, or its error}
    {"do": "retries", "name": …}                           → {"count": number of stage retries}

One line of JSON each (tests/support/peers/program.py). The driver is the leader of a new process session, by which the
test finds its JVM and Python workers to kill them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

ERROR_CHARS_MAX = 20_000
CAUSES_MAX = 8


class QueryHost:
    """The commands of the driver, one method each."""

    def __init__(self) -> None:
        self._spark: Any = None
        self._queries: dict[str, Any] = {}

    def open(self, master: str, settings: dict[str, str]) -> dict[str, Any]:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(master).appName("headrace-query-host")
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark: Any = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        self._spark = spark
        return {"jvm": spark._jvm.java.lang.ProcessHandle.current().pid(), "session": os.getpid()}

    def start(
        self, name: str, source: str, checkpoint: str, options: dict[str, str], tasks: int | None = None
    ) -> dict[str, Any]:
        """Start a query on a folder of files. A file is a batch, a line a row ("key value"); a key is in one task.

        With a format, the value is a struct with the line.
        """
        rows = self._spark.readStream.option("maxFilesPerTrigger", 1).text(source)
        rows = rows.selectExpr("split_part(value, ' ', 1) AS key", "value")
        if "value.format" in options:
            rows = rows.selectExpr("key", "named_struct('line', value) AS value")
        rows = rows if tasks is None else rows.repartition(tasks, "key")
        writer = rows.writeStream.format("headrace").options(**options).option("checkpointLocation", checkpoint)
        self._queries[name] = writer.trigger(availableNow=True).start()
        return {"run": str(self._queries[name].runId)}

    def stream(
        self,
        name: str,
        source: dict[str, str],
        columns: list[str],
        checkpoint: str,
        options: dict[str, str],
        tasks: int | None = None,
    ) -> dict[str, Any]:
        """Start a query that runs until it is stopped. `source` has the format and its options."""
        source_options = {option: value for option, value in source.items() if option != "format"}
        rows = self._spark.readStream.format(source["format"]).options(**source_options).load().selectExpr(*columns)
        rows = rows if tasks is None else rows.repartition(tasks)
        writer = rows.writeStream.format("headrace").options(**options).option("checkpointLocation", checkpoint)
        self._queries[name] = writer.trigger(processingTime="200 milliseconds").start()
        return {}

    def stop(self, name: str) -> dict[str, Any]:
        self._queries[name].stop()
        return {}

    def states(self) -> dict[str, Any]:
        return {name: _state(query) for name, query in self._queries.items()}

    def retries(self, name: str) -> dict[str, Any]:
        tracker = self._spark.sparkContext.statusTracker()
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(self._queries[name].runId))
        stages = [tracker.getStageInfo(number) for job in jobs if job is not None for number in job.stageIds]
        return {"count": sum(stage.currentAttemptId for stage in stages if stage is not None)}

    def __call__(self, do: str, seconds_max: float, **arguments: Any) -> Any:
        del seconds_max  # the caller watches the time
        commands: list[Callable[..., Any]] = [self.open, self.start, self.stream, self.stop, self.states, self.retries]
        return next(command for command in commands if command.__name__ == do)(**arguments)


def _state(query: Any) -> str | None:
    if query.isActive:
        return None
    error = query.exception()
    texts: list[str] = []
    while error is not None and len(texts) < CAUSES_MAX:
        texts.append(str(error)[:ERROR_CHARS_MAX])
        error = error._cause
    return "\ncaused by: ".join(texts)


def main() -> None:
    os.setsid()
    host = QueryHost()
    for line in sys.stdin:
        try:
            reply = host(**json.loads(line))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)
    os._exit(0)  # without clean-up: the JVM ends when its standard input is closed


if __name__ == "__main__":
    main()
