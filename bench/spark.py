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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

RUN_SECONDS_MAX = 3600
JVM_OPTIONS = ("-Xmx1g", "-Xms1g")
PARTS = ("sink", "source", "embedded", "stream")
Figures = dict[str, dict[str, float]]


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


def measure(folder: Path, rounds: int, only: str, rows: int | None) -> dict[str, Any]:
    """Seconds of every job of every round."""
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
        done = subprocess.run(command, env=variables, cwd=folder, timeout=RUN_SECONDS_MAX, check=False)
        if done.returncode:
            raise SystemExit(f"the jobs ended with {done.returncode}")
        measured: dict[str, Any] = json.loads(output.read_text())
        return measured
    finally:
        kafka.remove()
        embedded.close()


def verdicts(rates: Figures, milliseconds: dict[str, float]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def judge(what: str, value: float, sign: str, target: float) -> None:
        met = value >= target if sign == "≥" else value <= target
        rows.append({"what": what, "value": value, "target": f"{sign} {target:g}", "met": met})

    def ratio(part: str, ours: str, theirs: str) -> float:
        return rates[part][ours] / rates[part][theirs]

    if "sink" in rates:
        # Both as they come. What a user may gain by telling the connector to make larger batches is in the table.
        judge("sink, exactly-once, to connector", ratio("sink", "headrace, exactly-once", "connector"), "≥", 1.5)
    if "source" in rates:
        for how in sorted({label.partition(", ")[2] for label in rates["source"]}):
            judge(f"source to connector: {how}", ratio("source", f"headrace, {how}", f"kafka, {how}"), "≥", 2.5)
    if "embedded" in rates:
        measured = ratio("embedded", "headrace, embedded broker", "dropped in Python")
        judge("sink on the embedded broker, to rows dropped", measured, "≥", 0.6)
    if milliseconds:
        over = milliseconds["headrace, exactly-once"] - milliseconds["headrace, at-least-once"]
        judge("small batch, exactly-once over at-least-once, ms", over, "≤", 60)
    return rows


def show(result: dict[str, Any], rates: Figures, milliseconds: dict[str, float], rows: list[dict[str, Any]]) -> None:
    for part, by_job in rates.items():
        print(f"{part:40} {'rows/s':>12} {'slowest':>12} {'fastest':>12}")
        for label, rate in by_job.items():
            seconds = result["seconds"][part][label]
            slowest, fastest = result["rows"] / max(seconds), result["rows"] / min(seconds)
            print(f"  {label:38} {rate:12,.0f} {slowest:12,.0f} {fastest:12,.0f}")
    if milliseconds:
        print(f"{'stream, a small batch':40} {'ms':>12} {'best':>12} {'batches':>12}")
        for label, median in milliseconds.items():
            seconds = result["seconds"]["stream"][label]
            print(f"  {label:38} {median:12,.1f} {min(seconds) * 1000:12,.1f} {len(seconds):12}")
    print()
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
        if part != "stream"
    }
    milliseconds = {label: statistics.median(measured) * 1000 for label, measured in seconds.get("stream", {}).items()}
    rows = verdicts(rates, milliseconds)
    if options.json:
        print(json.dumps({**result, "rates": rates, "milliseconds": milliseconds, "targets": rows}, indent=2))
    else:
        show(result, rates, milliseconds, rows)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
