"""Cost of reporting to a live view for `send()`: part of `make bench-ui`, or `python -m bench.ui_send`.

The same producer with and without `metric.reporters=view` on one headrace broker with a view, one process per run. The
noise of single runs is four times the effect, so runs are compared in many neighbouring pairs: the mean of the ratios
with its standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass, field

from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient, NewTopic
from tests.support.live_view import LiveView

ROUNDS = 40
RECORDS = 8_000_000
PARTITIONS = 4
RUN_SECONDS_MAX = 180
LOSS_MAX = 0.03
RETAINED = {"retention.bytes": str(256 << 20), "segment.bytes": str(64 << 20)}


@dataclass(slots=True)
class Case:
    """A way to send, with and without reports."""

    kind: str
    silent: list[dict[str, float]] = field(default_factory=list)
    reporting: list[dict[str, float]] = field(default_factory=list)

    def increase(self, measure: str) -> tuple[float, float]:
        """Relative increase of a measure by reporting, and its standard error."""
        ratios = [
            math.log(reporting[measure] / silent[measure])
            for silent, reporting in zip(self.silent, self.reporting, strict=True)
        ]
        return math.expm1(statistics.mean(ratios)), statistics.stdev(ratios) / math.sqrt(len(ratios))

    @property
    def is_met(self) -> bool:
        return self.increase("seconds")[0] < LOSS_MAX


def measure(rounds: int = ROUNDS, records: int = RECORDS) -> list[Case]:
    """Run all cases in pairs."""
    cases = [Case("send"), Case("keyed")]
    with EmbeddedBroker({"log.retention.check.interval.ms": 5000}) as broker, LiveView(broker.bootstrap) as view:
        with AdminClient(broker.bootstrap) as admin:
            admin.create_topics([NewTopic("bench-ui", partitions=PARTITIONS, configs=RETAINED)])
        for number in range(rounds):
            for case in cases:
                turns = [(case.silent, None), (case.reporting, view.url)]
                random.Random(number).shuffle(turns)
                for results, url in turns:
                    results.append(_run(broker.bootstrap, case.kind, records, url))
    return cases


def _run(bootstrap: str, kind: str, records: int, url: str | None) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.producer_client", "headrace", "--kind", kind, "--bootstrap", bootstrap]
    command += ["--topic", "bench-ui", "--records", str(records), *(() if url is None else ("--view", url))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def report(cases: list[Case]) -> bool:
    """Print the results; return whether the target is met."""
    print(f"{'':8}  {'silent':>14}  {'reporting':>14}  {'more time (< 3 %)':>17}  {'more CPU':>17}  {'thread':>7}")
    for case in cases:
        silent, reporting = (_median(runs, "records_per_s") for runs in (case.silent, case.reporting))
        loss, cpu = ("{:+.2%} ± {:.2%}".format(*case.increase(measure)) for measure in ("seconds", "cpu_us"))
        share = _median(case.reporting, "view_share")
        verdict = "met" if case.is_met else "MISSED"
        print(
            f"{case.kind:8}  {silent:>12,.0f}/s  {reporting:>12,.0f}/s  {loss:>17}  {cpu:>17}  {share:>7.2%}  {verdict}"
        )
    print("rates: medians; thread: CPU share of the reporting thread")
    return all(case.is_met for case in cases)


def _median(runs: list[dict[str, float]], measure: str) -> float:
    return statistics.median(run[measure] for run in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases = measure(options.rounds, options.records)
    if options.json:
        print(json.dumps([{"kind": case.kind, "silent": case.silent, "reporting": case.reporting} for case in cases]))
        return 0
    return 0 if report(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
