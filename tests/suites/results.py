"""The expected outcomes of a suite, a file in tests/suites/expected:

    # franz-go 1.22.2
    TestGroupETL         passed passed passed
    TestSomething        passed failed passed   reason of the difference

The columns are those of `COLUMNS`. A test that is skipped on all of them is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast, get_args

from tests.suites.suite import Outcome

EXPECTED = Path(__file__).parent / "expected"
COLUMNS = ("apache", "headrace", "cluster")
_OUTCOMES = get_args(Outcome)


@dataclass(slots=True)
class Expectation:
    """The outcomes of a test by column, and why they differ."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    reason: str = ""

    @property
    def differs(self) -> bool:
        """Whether the outcome on headrace's brokers is not that on Apache Kafka."""
        return len(set(self.outcomes.values())) > 1


Expectations = dict[str, Expectation]


def load(suite: str, folder: Path = EXPECTED) -> Expectations:
    """Return the expectations of a suite; none if there is no file."""
    path = folder / f"{suite}.txt"
    expectations: Expectations = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("#"):
            continue
        name, *words = line.split(maxsplit=len(COLUMNS) + 1)
        outcomes, reason = words[: len(COLUMNS)], words[len(COLUMNS) :]
        if len(outcomes) < len(COLUMNS) or any(outcome not in _OUTCOMES for outcome in outcomes):
            raise ValueError(f"invalid line in {path}: expected a test and {len(COLUMNS)} outcomes, got {line!r}")
        expectations[name] = Expectation(dict(zip(COLUMNS, cast("list[Outcome]", outcomes), strict=True)), *reason)
    return expectations


def save(suite: str, version: str, expectations: Expectations, folder: Path = EXPECTED) -> None:
    """Write the file of a suite. A column in which a test has not been run yet is `skipped`."""
    kept = {
        name: [expectation.outcomes.get(column, "skipped") for column in COLUMNS]
        for name, expectation in sorted(expectations.items())
        if set(expectation.outcomes.values()) != {"skipped"}
    }
    width = max(map(len, kept), default=0)
    lines = [f"# {suite} {version}: outcomes on {', '.join(COLUMNS)}; the reason of a difference"]
    for name, outcomes in kept.items():
        texts = " ".join(f"{outcome:7}" for outcome in outcomes)
        lines.append(f"{name:{width}}  {texts}  {expectations[name].reason}".rstrip())
    (folder / f"{suite}.txt").write_text("\n".join(lines) + "\n")


def differences(expectations: Expectations, column: str, outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return a line for each test whose outcome is not the expected one. Skipped tests may be unknown."""
    lines = []
    for name in sorted(expectations.keys() | outcomes.keys()):
        expected = expectations[name].outcomes[column] if name in expectations else "skipped"
        outcome = outcomes.get(name, "skipped")
        if outcome != expected:
            lines.append(f"{name}: expected {expected}, {outcome}")
    return lines


def table(suites: Iterable[str], folder: Path = EXPECTED) -> str:
    """Return the table of the docs: tests of each suite, and how many pass."""
    lines = [
        "| suite | tests | Apache Kafka 4.3 | one headrace broker | three |",
        "|---|---|---|---|---|",
    ]
    for suite in suites:
        expectations = load(suite, folder)
        counts = [
            sum(expectation.outcomes[column] == "passed" for expectation in expectations.values()) for column in COLUMNS
        ]
        lines.append(f"| {suite} | {len(expectations)} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)
