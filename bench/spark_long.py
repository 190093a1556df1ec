"""`make bench-spark-long`: a hundred million rows through the exactly-once sink; is memory bounded, and the rate flat?

    rows made by Spark → the sink, a transaction for each task → our own broker, which keeps only the last of them

Looked at from outside, every second: how much memory each Python worker has had at most, and how far the topic is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench.spark_client import VALUE_BYTES, keyed_rows, say
from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient, NewTopic, TopicPartition
from headrace.client.offsets import LATEST
from headrace.spark import session

ROWS = 100_000_000
TASKS = 16
TOPIC, PARTITIONS = "long", 4
SAMPLE_SECONDS = 1.0
STOP_SECONDS_MAX = 30.0
WORKER_MB_MAX = 600
FLAT_MIN = 0.8
"""The last third of the run is to be at least so fast, compared with the first."""
KEPT = {"retention.bytes": str(512 << 20), "segment.bytes": str(128 << 20), "file.delete.delay.ms": "1000"}


class Watch:
    """Samples the progress of the run, on a separate thread."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient(bootstrap)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.peaks_mb: dict[int, float] = {}  # by process
        self.written: list[tuple[float, int]] = []  # when, rows so far

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._thread.join(STOP_SECONDS_MAX)
        self._admin.close()

    def _run(self) -> None:
        ends = {TopicPartition(TOPIC, number): LATEST for number in range(PARTITIONS)}
        while not self._stopped.wait(SAMPLE_SECONDS):
            for pid, peak_mb in worker_peaks_mb().items():
                self.peaks_mb[pid] = max(peak_mb, self.peaks_mb.get(pid, 0.0))
            result = self._admin.list_offsets(ends)
            self.written.append((time.monotonic(), sum(end.offset for end in result.values())))
            say(f"{self.written[-1][1]:,} rows, the largest worker {max(self.peaks_mb.values(), default=0):.0f} MB")

    def rates(self) -> list[float]:
        """Return the rows per second between samples, while there were any."""
        pairs = zip(self.written, self.written[1:], strict=False)
        rates = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairs]
        busy = [number for number, rate in enumerate(rates) if rate > 0]
        return rates[busy[0] + 1 : busy[-1]]


def worker_peaks_mb() -> dict[int, float]:
    """Return the peak memory of each Python process of Spark below this one."""
    result: dict[int, float] = {}
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = dict(
                line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line
            )
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        pid = int(folder.name)
        parents[pid] = int(fields["PPid"])
        if b"pyspark" in command and b"java" not in command.split(b"\0")[0] and "VmHWM" in fields:
            result[pid] = int(fields["VmHWM"].split()[0]) / 1024
    return {pid: peak for pid, peak in result.items() if pid != os.getpid() and _is_below(pid, os.getpid(), parents)}


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    for _ in range(len(parents)):
        pid = parents.get(pid, 0)
        if pid in (0, ancestor):
            return pid == ancestor
    return False


def measure(folder: Path, rows: int) -> dict[str, Any]:
    options = {"log.retention.check.interval.ms": 5000}
    with EmbeddedBroker(options, data_dir=folder / "headrace") as broker:
        with AdminClient(broker.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, configs=KEPT)])
        spark = session("headrace-bench", config={"spark.sql.warehouse.dir": str(folder / "warehouse")})
        try:
            sink = keyed_rows(spark, rows, TASKS).write.format("headrace").mode("append")
            with Watch(broker.bootstrap) as watch:
                started = time.monotonic()
                sink.options(**{"kafka.bootstrap.servers": broker.bootstrap, "topic": TOPIC}).save()
                seconds = time.monotonic() - started
        finally:
            say("")
            spark.stop()
    rates = watch.rates()
    third = max(1, len(rates) // 3)
    return {
        "rows": rows,
        "seconds": seconds,
        "rows_per_s": rows / seconds,
        "worker_peak_mb": max(watch.peaks_mb.values()),
        "workers": len(watch.peaks_mb),
        "rate_first_third": statistics.mean(rates[:third]),
        "rate_last_third": statistics.mean(rates[-third:]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # brokers and gigabytes are not left behind
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        result = measure(Path(folder), options.rows)
    flat = result["rate_last_third"] / result["rate_first_third"]
    peak = result["worker_peak_mb"]
    targets = [
        ("peak memory of a Python worker, MB", peak, f"< {WORKER_MB_MAX}", peak < WORKER_MB_MAX),
        ("rate of the last third to the first", flat, f"≥ {FLAT_MIN}", flat >= FLAT_MIN),
    ]
    if options.json:
        rows = [{"what": what, "value": value, "target": target, "met": met} for what, value, target, met in targets]
        print(json.dumps({"result": result, "targets": rows}, indent=2))
    else:
        print(
            f"{result['rows']:,} keyed rows of {VALUE_BYTES} bytes in {result['seconds']:.0f} s: "
            f"{result['rows_per_s']:,.0f} rows/s, by {result['workers']} Python processes"
        )
        for what, value, target, met in targets:
            print(f"{what:40} {value:8.2f}  {target:>6}  {'met' if met else 'MISSED'}")
    return 0 if all(met for *_, met in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
