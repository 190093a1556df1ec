"""A Spark driver that is controlled from outside: many streaming queries in one JVM.

    {"do": "open", "master": …, "settings": {…}}           → {"jvm": pid, "session": pid}
    {"do": "start", "name": …, "source": folder, "checkpoint": folder, "options": {…}, "tasks": 3}   → {"run": …}
    {"do": "stream", "name": …, "source": {…}, "columns": […], "checkpoint": folder, "options": {…}, "tasks": 2}   → {}
    {"do": "stop", "name": …}                              → {}, when the query has ended
    {"do": "look"}                                         → {name: null while it runs, "" when done, or its error}
    {"do": "retries", "name": …}                           → {"count": how often a stage of it was run again}

One line of JSON each (tests/support/peers/program.py). It is a session of its own, in the system's sense: whoever kills
the driver finds its JVM and all of its Python workers by that.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

ERROR_CHARS_MAX = 20_000
CAUSES_MAX = 8


class Host:
    """The driver."""

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
        """Every file of the folder is a batch, every line a row, "key value". Rows of a key are in one task."""
        rows = self._spark.readStream.option("maxFilesPerTrigger", 1).text(source)
        rows = rows.selectExpr("split_part(value, ' ', 1) AS key", "value")
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
        """A query that runs until it is stopped. `source`: its format, and options for it."""
        given = {option: value for option, value in source.items() if option != "format"}
        rows = self._spark.readStream.format(source["format"]).options(**given).load().selectExpr(*columns)
        rows = rows if tasks is None else rows.repartition(tasks)
        writer = rows.writeStream.format("headrace").options(**options).option("checkpointLocation", checkpoint)
        self._queries[name] = writer.trigger(processingTime="200 milliseconds").start()
        return {}

    def stop(self, name: str) -> dict[str, Any]:
        self._queries[name].stop()
        return {}

    def look(self) -> dict[str, Any]:
        return {name: _state(query) for name, query in self._queries.items()}

    def retries(self, name: str) -> dict[str, Any]:
        tracker = self._spark.sparkContext.statusTracker()
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(self._queries[name].runId))
        stages = [tracker.getStageInfo(number) for job in jobs if job is not None for number in job.stageIds]
        return {"count": sum(stage.currentAttemptId for stage in stages if stage is not None)}

    def __call__(self, do: str, seconds_max: float, **arguments: Any) -> Any:
        del seconds_max  # whoever asks looks at the clock
        orders: list[Callable[..., Any]] = [self.open, self.start, self.stream, self.stop, self.look, self.retries]
        return next(order for order in orders if order.__name__ == do)(**arguments)


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
    host = Host()
    for line in sys.stdin:
        try:
            answer = host(**json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    os._exit(0)  # the JVM ends with our end of its standard input; nothing here is worth waiting for


if __name__ == "__main__":
    main()
