"""Run simulations: `make simulate HOURS=… | SEED=…`.

python -m tests.simulation --hours 100        seeds 1, 2, … until so many hours are simulated
python -m tests.simulation --seed 17          one seed again, with the log of its faults
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import time
import traceback
from functools import partial

from tests.simulation.seams import fixed_hashes
from tests.simulation.simulation import Plan, Result, Simulation, simulate

RUNS_PER_PROCESS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate a cluster, its clients and faults.")
    parser.add_argument("--seed", type=int, help="run this seed only, and show its faults")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--hours", type=float, default=1.0, help="simulated hours in all")
    parser.add_argument("--seconds", type=float, default=1800.0, help="simulated seconds with faults, of each seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at the same time")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1.0, help="steps of each writer per second")
    arguments = parser.parse_args()
    fixed_hashes()
    plan = Plan(brokers=arguments.brokers, seconds=arguments.seconds, rate_per_s=arguments.rate)
    if arguments.seed is not None:
        result = Simulation(arguments.seed, plan).run()
        print("\n".join(result.notes))
        report(result)
        sys.exit(bool(result.anomalies))
    sys.exit(bool(run_seeds(plan, arguments.first, arguments.hours * 3600, arguments.jobs)))


def run_seeds(plan: Plan, first: int, seconds: float, jobs: int) -> list[int]:
    """Run one seed after the other until `seconds` are simulated; return the seeds with anomalies."""
    started, simulated, bad = time.monotonic(), 0.0, []
    count = math.ceil(seconds / plan.seconds)  # each run is longer than that
    # New interpreters import `simulate` by its module's name: this one is __main__.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=RUNS_PER_PROCESS) as pool:
        for result in pool.imap(partial(simulate, plan), range(first, first + count)):
            report(result)
            simulated += result.simulated_seconds
            bad += [result.seed] if result.anomalies else []
            if simulated >= seconds:
                pool.terminate()
                break
    minutes = (time.monotonic() - started) / 60
    print(
        f"{simulated / 3600:.2f} simulated hours in {minutes:.1f} minutes: {simulated / 3600 / minutes:.2f} hours per "
        f"minute; seeds with anomalies: {bad or 'none'}"
    )
    return bad


def report(result: Result) -> None:
    print(
        f"seed {result.seed}: {result.simulated_seconds:.0f} s in {result.real_seconds:.1f} s, {result.events} events, "
        f"{result.messages} messages, {result.history} in the history, {sum(result.faults.values())} faults, "
        f"digest {result.digest:08x}: {len(result.anomalies) or 'no'} anomalies",
        flush=True,
    )
    for anomaly in result.anomalies[:20]:
        print(f"    {anomaly}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except SystemExit:
        raise
    except BaseException:  # 1 is the exit code for anomalies
        traceback.print_exc()
        sys.exit(2)
