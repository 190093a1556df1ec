"""`make commit-cost`: a cost model of the commit, against bench-commit and against simulated clusters.

    time     a + b · transactions, fitted to sizes up to 1,000, predicts 2,000                 (bench/commit.py)
    messages a formula of tasks, partitions for each task, and brokers, against the messages that the real code sends
             in the simulation, up to 10,000 tasks, 1,000 partitions and 50 brokers          (tests/simulation/scale.py)

Prints both as tables and writes build/commit-cost.svg.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

from bench.commit import PARTITIONS, SIZES, TOPIC, fit, measure
from headrace.broker import EmbeddedBroker
from headrace.client.blocking import LOOKED_UP_MAX
from headrace.spark.transactions import DESCRIBED_MAX
from tests.simulation.scale import Counts, Scale
from tests.simulation.scale import measure as simulate
from tests.simulation.seams import fixed_hashes

FITTED_MAX, PREDICTED = 1_000, 2_000
ERROR_MAX = 0.25
"""How far a prediction may be from what is measured."""
SCALES = (
    Scale(100, 20, 3),
    Scale(500, 100, 10),
    Scale(1_000, 100, 10),
    Scale(2_000, 1_000, 50),
    Scale(10_000, 1_000, 50),
)
FIXED_REQUESTS = 12
"""Requests of the driver whatever the size: two transactions of the ledger, and the first EndTxn."""
SPAN_BYTES = 6.0
"""Of a compressed decision, for each task and partition. Offsets that vary more take up to twice as much."""
PLOT = Path("build/commit-cost.svg")


def requests(scale: Scale) -> float:
    """Return the requests of the driver: one EndTxn for each task, and searches at all brokers."""
    look_ups = math.ceil(scale.tasks / LOOKED_UP_MAX)
    descriptions = scale.brokers * math.ceil(scale.tasks / scale.brokers / DESCRIBED_MAX)
    leftovers = scale.brokers
    return FIXED_REQUESTS + look_ups + descriptions + leftovers + scale.tasks


def marker_messages(scale: Scale) -> float:
    """Return the messages between brokers: a request to each other broker that leads partitions of a task, and back."""
    brokers = scale.brokers
    leaders = (brokers - 1) * (1 - (1 - 1 / brokers) ** scale.partitions_per_task)  # expected, without the coordinator
    return 2 * scale.tasks * leaders


def decision_bytes(scale: Scale) -> float:
    return SPAN_BYTES * scale.tasks * scale.partitions_per_task


def deviation(predicted: float, measured: float) -> float:
    return predicted / measured - 1


def time_model(rounds: int) -> tuple[dict[int, float], float, float, bool]:
    """Return the measured milliseconds by size, the fitted a and b, and whether the prediction is good enough."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        broker = EmbeddedBroker(data_dir=Path(folder) / "headrace")
        broker.start()
        try:
            broker.create_topic(TOPIC, PARTITIONS)
            medians = measure(broker.bootstrap, list(SIZES), rounds)
        finally:
            broker.close()
    fixed_ms, each_ms = fit({size: row for size, row in medians.items() if size <= FITTED_MAX}, "total")
    measured = {size: row["total"] for size, row in medians.items()}
    print(f"time of a commit: {fixed_ms:.1f} ms + {each_ms:.3f} ms for each transaction (fitted up to {FITTED_MAX:,})")
    print(f"{'transactions':>14}{'predicted':>12}{'measured':>12}{'deviation':>12}")
    for size, value in measured.items():
        predicted = fixed_ms + each_ms * size
        print(f"{size:14,}{predicted:9.0f} ms{value:9.0f} ms{deviation(predicted, value):+12.0%}")
    error = deviation(fixed_ms + each_ms * PREDICTED, measured[PREDICTED])
    return measured, fixed_ms, each_ms, abs(error) <= ERROR_MAX


def message_model(scales: list[Scale]) -> tuple[dict[Scale, Counts], bool]:
    """Return what the simulation counted, and whether all predictions are good enough."""
    counted, is_good = {}, True
    print(
        f"\n{'tasks':>8}{'partitions':>12}{'brokers':>9}  {'what':<26}{'predicted':>11}{'counted':>11}{'deviation':>11}"
    )
    for scale in scales:
        counts = counted[scale] = simulate(scale)
        rows = (
            ("requests of the driver", requests(scale), counts.requests),
            ("messages between brokers", marker_messages(scale), counts.marker_requests),
            ("bytes of the decision", decision_bytes(scale), counts.decision_bytes),
        )
        for name, predicted, value in rows:
            error = deviation(predicted, value)
            is_good &= abs(error) <= ERROR_MAX or name.startswith("bytes")
            print(
                f"{scale.tasks:8,}{scale.partitions:12,}{scale.brokers:9}  {name:<26}{predicted:11,.0f}{value:11,}"
                f"{error:+11.0%}",
                flush=True,
            )
    return counted, is_good


def plot(measured: dict[int, float], fixed_ms: float, each_ms: float, counted: dict[Scale, Counts]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    if measured:
        sizes = list(measured)
        left.plot(sizes, [fixed_ms + each_ms * size for size in sizes], label="predicted")
        left.plot(sizes, list(measured.values()), "o", label="measured, one broker")
        left.set(xlabel="transactions", ylabel="ms", title="time of a commit")
        left.legend()
    tasks = [scale.tasks for scale in counted]
    for name, model, attribute in (
        ("driver", requests, "requests"),
        ("between brokers", marker_messages, "marker_requests"),
    ):
        (line,) = right.plot(tasks, [model(scale) for scale in counted], label=f"{name}, predicted")
        values = [getattr(counts, attribute) for counts in counted.values()]
        right.plot(tasks, values, "o", color=line.get_color(), label=f"{name}, simulated")
    right.set(xlabel="tasks", ylabel="messages", title="messages of a commit", xscale="log", yscale="log")
    right.legend()
    PLOT.parent.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(PLOT)
    print(f"\n{PLOT}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks-max", type=int, default=10_000, help="leave out larger simulations")
    arguments = parser.parse_args()
    fixed_hashes()
    measured, fixed_ms, each_ms, is_time_good = time_model(arguments.rounds)
    counted, are_counts_good = message_model([scale for scale in SCALES if scale.tasks <= arguments.tasks_max])
    plot(measured, fixed_ms, each_ms, counted)
    return 0 if is_time_good and are_counts_good else 1


if __name__ == "__main__":
    sys.exit(main())
