"""`make bench-spark`: our sink and source side by side with spark-sql-kafka-0-10, on the same Spark, rows and broker.

    Apache Kafka, our own broker → bench.spark_client: one JVM, every job once in a round → medians → targets

The Spark is the one that the connector was made for. Our package runs on it as it is, from this environment.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from headrace.spark.commit_times import CommitTimes
from headrace.spark.log_setup import LEVEL

ROOT = Path(__file__).parent.parent

RUN_SECONDS_MAX = 3600
JVM_OPTIONS = ("-Xmx1g", "-Xms1g")
PARTS = ("sink", "source", "embedded", "stream")
OURS, CONNECTOR, FLOOR = "exactly-once", "connector", "empty-python-sink"
WHOLE = "triggerExecution"
SPARK_PHASES = (WHOLE, "addBatch", "walCommit", "commitOffsets", "queryPlanning", "latestOffset", "getBatch")
OUR_PHASES = (
    *("plan_ms", "launch_ms", "write_ms", "collect_ms"),
    *("begin_ms", "check_ms", "decide_ms", "end_ms", "clean_ms"),
)
WARM_UP_COMMITS = 8
Figures = dict[str, dict[str, float]]
"""By part or job, then by job or phase."""


def spark_environment() -> tuple[dict[str, str], str]:
    """Variables with which our Python gets the connector's Spark, and the connector's jars."""
    from tests.support.peers import spark_connector

    jars, environment = spark_connector.installed()
    packages = next(environment.glob("lib/python*/site-packages"))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if packages.parent.name != version:
        raise SystemExit(f"the Spark in {environment} is for {packages.parent.name}, and this is {version}: remove it")
    variables = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    variables |= {"PYTHONPATH": os.pathsep.join(map(str, (packages, ROOT / "src", ROOT)))}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    return variables, ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))


class LogReader(threading.Thread):
    """Passes the jobs' log on, and keeps the times that our sinks have logged: `commits`, by name of the sink."""

    def __init__(self, lines: IO[str]) -> None:
        super().__init__(daemon=True)
        self._lines = lines
        self.commits: dict[str, list[CommitTimes]] = {}

    def run(self) -> None:
        for line in self._lines:
            times = CommitTimes.of_line(line)
            if times is None:
                if " INFO " not in line:
                    print(line, end="", file=sys.stderr, flush=True)
            else:
                sink = line.partition(" sink ")[2].partition(": ")[0]
                self.commits.setdefault(sink, []).append(times)


def measure(folder: Path, rounds: int, only: str, rows: int | None) -> dict[str, Any]:
    """Seconds of every job of every round; milliseconds of every small batch, phase by phase."""
    from headrace.broker import EmbeddedBroker
    from tests.support.peers.maven import kafka_jars
    from tests.support.peers.real_kafka import RealKafka

    variables, jars = spark_environment()
    kafka = RealKafka(kafka_jars("4.3.0"), folder / "kafka", jvm_options=JVM_OPTIONS)
    embedded = EmbeddedBroker(data_dir=folder / "headrace")
    output = folder / "result.json"
    try:
        kafka.start()
        embedded.start()
        command = [sys.executable, "-m", "bench.spark_client", "--jars", jars, "--output", str(output)]
        command += ["--kafka", kafka.bootstrap, "--embedded", embedded.bootstrap, "--rounds", str(rounds)]
        command += ["--only", only, *(["--rows", str(rows)] if rows else [])]
        variables[LEVEL] = "INFO"
        with subprocess.Popen(command, env=variables, cwd=folder, stderr=subprocess.PIPE, text=True) as jobs:
            assert jobs.stderr is not None
            reader = LogReader(jobs.stderr)
            reader.start()
            try:
                jobs.wait(RUN_SECONDS_MAX)
            finally:
                jobs.kill()
            reader.join(RUN_SECONDS_MAX)
        if jobs.returncode:
            raise SystemExit(f"the jobs ended with {jobs.returncode}")
        result: dict[str, Any] = json.loads(output.read_text())
        result["commits"] = {sink: [asdict(times) for times in logged] for sink, logged in reader.commits.items()}
        return result
    finally:
        kafka.remove()
        embedded.close()


def medians(batches: Iterable[dict[str, float]]) -> dict[str, float]:
    """The median of each phase."""
    by_phase: dict[str, list[float]] = {}
    for batch in batches:
        for phase, milliseconds in batch.items():
            by_phase.setdefault(phase, []).append(milliseconds)
    return {phase: statistics.median(samples) for phase, samples in by_phase.items()}


def verdicts(rates: Figures, phases: Figures) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def judge(what: str, value: float, sign: str, target: float) -> None:
        met = value >= target if sign == "≥" else value <= target
        rows.append({"what": what, "value": value, "target": f"{sign} {target:g}", "met": met})

    def ratio(part: str, ours: str, theirs: str) -> float:
        return rates[part][ours] / rates[part][theirs]

    if "sink" in rates:
        # Both as they come. What a user may gain by telling the connector to make larger batches is in the table.
        judge("sink, exactly-once, to connector", ratio("sink", "headrace, exactly-once", "connector"), "≥", 1.9)
        large = ratio("sink", "connector, large batches", "headrace, exactly-once")
        judge("connector with batches of 256 KB, to ours", large, "≤", 0.75)
    if "source" in rates:
        for how in sorted({label.partition(", ")[2] for label in rates["source"]}):
            judge(f"source to connector: {how}", ratio("source", f"headrace, {how}", f"kafka, {how}"), "≥", 2.7)
    if "embedded" in rates:
        measured = ratio("embedded", "headrace, embedded broker", "dropped in Python")
        judge("sink on the embedded broker, to rows dropped", measured, "≥", 0.6)
    if phases:
        ours, connector, floor = (phases[job][WHOLE] for job in (OURS, CONNECTOR, FLOOR))
        judge("small batch, exactly-once, to connector", ours / connector, "≤", 1.2)
        judge("small batch, exactly-once over an empty Python sink, ms", ours - floor, "≤", 25)
    return rows


def show_phases(title: str, phases: Figures, order: Iterable[str]) -> None:
    names = [name for name in order if any(name in by_phase for by_phase in phases.values())]
    print(f"{title:30}" + "".join(f"{name.removesuffix('_ms'):>15}" for name in names))
    for label, by_phase in phases.items():
        print(f"  {label:28}" + "".join(f"{by_phase.get(name, 0.0):15,.1f}" for name in names))


def show(result: dict[str, Any], rates: Figures, phases: Figures, rows: list[dict[str, Any]]) -> None:
    for part, by_job in rates.items():
        print(f"{part:40} {'rows/s':>12} {'slowest':>12} {'fastest':>12}")
        for label, rate in by_job.items():
            seconds = result["seconds"][part][label]
            slowest, fastest = result["rows"] / max(seconds), result["rows"] / min(seconds)
            print(f"  {label:38} {rate:12,.0f} {slowest:12,.0f} {fastest:12,.0f}")
    if phases:
        print(f"medians of {len(result['batches'][OURS])} batches of 100 rows in two tasks, ms")
        show_phases("Spark's phases", phases, SPARK_PHASES)
        commits = {sink: medians(times[WARM_UP_COMMITS:]) for sink, times in result["commits"].items()}
        show_phases(
            "our phases of addBatch", {label: commits[label] for label in phases if label in commits}, OUR_PHASES
        )
    print()
    if result["stalls"]:
        print(f"Spark's connector stalled {len(result['stalls'])} times, and was measured again: {result['stalls'][0]}")
    for row in rows:
        print(f"{row['what']:62} {row['value']:8.2f}  {row['target']:>6}  {'met' if row['met'] else 'MISSED'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="fewer rows, for a look")
    parser.add_argument("--only", default=",".join(PARTS), help="some of: %(default)s")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # brokers and gigabytes are not left behind
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every start of ours would compile it anew
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        result = measure(Path(folder), options.rounds, options.only, options.rows)
    seconds = result["seconds"]
    rates = {
        part: {label: result["rows"] / statistics.median(measured) for label, measured in by_job.items()}
        for part, by_job in seconds.items()
    }
    phases = {label: medians(batches) for label, batches in result["batches"].items()}
    rows = verdicts(rates, phases)
    if options.json:
        print(json.dumps({**result, "rates": rates, "phases": phases, "targets": rows}, indent=2))
    else:
        show(result, rates, phases, rows)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
