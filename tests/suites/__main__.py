"""`make suite-franz-go` and so on: the test-suites of other projects, on Apache Kafka and on headrace's brokers.

    python -m tests.suites franz-go                          on all targets; the differences to the expected outcomes
    python -m tests.suites franz-go --on headrace --only TestGroupETL
    python -m tests.suites confluent --source ../confluent-kafka-python
    python -m tests.suites librdkafka --update               write tests/suites/expected/librdkafka.txt
    python -m tests.suites table                             the table in docs/broker.md

Nothing that is fetched becomes part of the repository: it is in the cache folder, and logs are in build/suites.
A test with an unexpected outcome is run again by itself, because many depend on times, and so on the machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.suites import results
from tests.suites.confluent import Confluent
from tests.suites.franz_go import FranzGo
from tests.suites.kafka_python import KafkaPython
from tests.suites.librdkafka import Librdkafka
from tests.suites.results import COLUMNS, Expectation, Expectations
from tests.suites.suite import Outcome, Run, Suite, SuiteError, Target
from tests.suites.targets import TARGETS
from tests.support.peers import fetched

SUITES: dict[str, Suite] = {suite.name: suite for suite in (FranzGo(), Librdkafka(), Confluent(), KafkaPython())}
LOGS = Path(__file__).parents[2] / "build" / "suites"
RETRIES = 2
RETRIED_MAX = 25
"""More failures than that have a cause other than time."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites")
    parser.add_argument("suite", choices=[*SUITES, "table"])
    parser.add_argument("--source", type=Path, help="a folder with the suite, instead of one that is fetched")
    parser.add_argument("--on", nargs="*", choices=COLUMNS, default=COLUMNS)
    parser.add_argument("--only", nargs="*", default=(), help="names of tests")
    parser.add_argument("--update", action="store_true", help="write the outcomes to the file of expectations")
    arguments = parser.parse_args()
    if arguments.suite == "table":
        print(results.table(SUITES))
        return 0
    suite = SUITES[arguments.suite]
    try:
        sources = _sources(suite, arguments.source)
    except SuiteError as error:
        print(f"{suite.name}: {error} (SOURCE=folder)", file=sys.stderr)
        return 2
    expectations = results.load(suite.name)
    is_same = True
    for column in arguments.on:
        outcomes = _run_on(column, suite, sources, arguments.only, expectations)
        if arguments.update:
            for name, outcome in outcomes.items():
                expectations.setdefault(name, Expectation()).outcomes[column] = outcome
            results.save(suite.name, suite.version, expectations)
            continue
        lines = results.differences(_selected(expectations, arguments.only), column, outcomes)
        is_same = is_same and not lines
        print("\n".join(f"  {line}" for line in lines) or "  as expected", flush=True)
    return 0 if is_same else 1


def _sources(suite: Suite, given: Path | None) -> Path:
    if given is not None:
        return given.absolute()
    if suite.must_be_given:
        raise SuiteError(suite.must_be_given)
    kind = suite.name.replace("-", "")
    return fetched.fetched(f"{kind}suite-{suite.version}", suite.fetch, others=f"{kind}suite-*")


def _run_on(
    column: str, suite: Suite, sources: Path, only: list[str], expectations: Expectations
) -> dict[str, Outcome]:
    """Run the suite, then tests with unexpected failures again; return the outcomes."""
    LOGS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    print(f"{suite.name} {suite.version} on {column}:", flush=True)
    with TARGETS[column](suite.broker_options) as target:
        outcomes = suite.run(Run(sources, target, _log(suite, target, 0), only))
        if not outcomes:
            raise SystemExit(f"no test has been run: see {_log(suite, target, 0)}")
        for attempt in range(1, RETRIES + 1):
            again = [
                name
                for name, outcome in outcomes.items()
                if outcome == "failed"
                and (name not in expectations or expectations[name].outcomes.get(column) != "failed")
            ]
            if not again or len(again) > RETRIED_MAX:
                break
            print(f"  again: {' '.join(again)}", flush=True)
            repeated = suite.run(Run(sources, target, _log(suite, target, attempt), again))
            outcomes |= {name: repeated[name] for name in again if name in repeated}
    if only:  # a suite may report all other tests as skipped
        outcomes = {name: outcome for name, outcome in outcomes.items() if outcome != "skipped"}
    counts = {kind: sum(outcome == kind for outcome in outcomes.values()) for kind in ("passed", "failed", "skipped")}
    figures = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"  {figures} in {time.monotonic() - started:.0f} s", flush=True)
    return outcomes


def _log(suite: Suite, target: Target, attempt: int) -> Path:
    return LOGS / f"{suite.name}-{target.name}-{attempt}.log"


def _selected(expectations: Expectations, only: list[str]) -> Expectations:
    return {name: expectations[name] for name in only if name in expectations} if only else expectations


if __name__ == "__main__":
    sys.exit(main())
