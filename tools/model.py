"""Check the model of the commit protocol with TLC, then that TLC refutes each negative control.

python -m tools.model                  all configurations and mutations, then a table
python -m tools.model --only PATTERN   those whose title contains PATTERN
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tools.tlc import MODEL, NO_ERROR, TlcRun, run_tlc

SPECIFICATION = "CommitProtocol.tla"
WORKERS = 2
"""Cores: for one configuration, or for as many mutations, which are too small for several workers."""
_MUTATION = re.compile(
    r"^### (?P<title>[^\n]+)\n`(?P<config>[a-z]+)` refutes it(?: with `(?P<liveness>\w+)`)?[^\n]*\n"
    r"```diff\n(?P<diff>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_STATES = re.compile(r"([\d,]+) states generated, ([\d,]+) distinct states found")
_DEPTH = re.compile(r"depth of the complete state graph search is (\d+)")
_VIOLATED = re.compile(r"Error: (?:Invariant|Action property|Temporal properties) ?(\w+)? ?(?:is|were) violated")
_REACHED = re.compile(r'<<"reached", "([^"]+)">>')


class ModelError(Exception):
    """A mutation cannot be applied."""


@dataclass(frozen=True, slots=True)
class Check:
    """A run of TLC, and whether it has to find a counterexample."""

    title: str
    specification: str
    config: str
    must_fail: bool = False
    liveness: str = ""
    """The only property of liveness that is checked: TLC does not say which of several is violated."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a check. `violated` is the property that TLC has refuted, or an empty text."""

    check: Check
    run: TlcRun
    violated: str
    states: int
    depth: int
    reached: frozenset[str]

    @property
    def is_expected(self) -> bool:
        return bool(self.violated) == self.check.must_fail

    def __str__(self) -> str:
        result = f"refuted: {self.violated}" if self.violated else "holds"
        return (
            f"{self.check.title:100.100} {self.states:>9,} {self.depth or '':>5} {self.run.seconds:6.1f} "
            f"{self.run.cpu_seconds:6.1f}  {result}{'' if self.is_expected else '  UNEXPECTED'}"
        )


HEADER = f"{'check':100} {'states':>9} {'depth':>5} {'s':>6} {'CPU s':>6}  result"


def configurations() -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted(MODEL.glob("*.cfg"))}


def properties() -> set[str]:
    """Return the properties of all configurations."""
    lists = re.findall(r"^(?:INVARIANTS|PROPERTIES) (.+)$", "\n".join(configurations().values()), re.MULTILINE)
    return {name for names in lists for name in names.split()}


def steps() -> set[str]:
    """Return the steps that a configuration has to reach."""
    (names,) = re.findall(r"^Steps == <<(.+?)>>", (MODEL / SPECIFICATION).read_text(), re.MULTILINE | re.DOTALL)
    return set(re.findall(r'"([^"]+)"', names))


def checks() -> Iterator[Check]:
    """All runs: the properties, and the negative controls."""
    specification, configs = (MODEL / SPECIFICATION).read_text(), configurations()
    for name, config in configs.items():
        yield Check(f"configuration {name}", specification, config)
    text = (MODEL / "mutations.md").read_text()
    mutations = list(_MUTATION.finditer(text))
    if len(mutations) != len(re.findall(r"^### ", text, re.MULTILINE)):
        raise ModelError("model/mutations.md: an entry does not have the form of the others")
    for mutation in mutations:
        title, config, liveness = mutation["title"], configs[mutation["config"]], mutation["liveness"] or ""
        if liveness:
            config = re.sub(r"^PROPERTIES .*$", f"PROPERTIES {liveness}", config, flags=re.MULTILINE)
        changed = mutated(title, specification, mutation["diff"])
        yield Check(f"mutation: {title}", changed, config, must_fail=True, liveness=liveness)


def mutated(title: str, specification: str, diff: str) -> str:
    """Return the specification with a diff applied. Its hunks are separated by lines `@@`."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in "- ")
        after = "".join(line[1:] for line in lines if line[0] in "+ ")
        if (count := specification.count(before)) != 1:
            raise ModelError(f"{title}: the lines to replace occur {count} times, expected once:\n{before}")
        specification = specification.replace(before, after)
    return specification


def run(check: Check) -> Outcome:
    workers = 1 if check.must_fail else WORKERS
    tlc = run_tlc({SPECIFICATION: check.specification}, SPECIFICATION, check.config, workers=workers)
    states, depth, violated = _STATES.findall(tlc.output), _DEPTH.search(tlc.output), _VIOLATED.search(tlc.output)
    outcome = Outcome(
        check,
        tlc,
        "" if tlc.code == NO_ERROR else (violated and violated[1]) or check.liveness or "liveness",
        int(states[-1][1].replace(",", "")) if states else 0,
        int(depth[1]) if depth else 0,
        frozenset(_REACHED.findall(tlc.output)),
    )
    print(outcome, flush=True)
    return outcome


def summary(outcomes: list[Outcome], seconds: float, *, is_whole: bool) -> list[str]:
    """Return what is wrong; print the table of the configurations, and how many mutations were refuted."""
    mutations = [outcome for outcome in outcomes if outcome.check.must_fail]
    problems = [f"unexpected: {outcome.check.title}" for outcome in outcomes if not outcome.is_expected]
    if is_whole:
        # A property that no mutation violates, or a step that never happens, would prove nothing.
        missing = steps() - {step for outcome in outcomes if not outcome.check.must_fail for step in outcome.reached}
        vacuous = properties() - {outcome.violated for outcome in mutations}
        problems += [f"no configuration reaches: {step}" for step in sorted(missing)]
        problems += [f"no mutation violates: {name}" for name in sorted(vacuous)]
    print(f"\n{HEADER}")
    for outcome in outcomes:
        if not outcome.check.must_fail:
            print(outcome)
    refuted = sum(outcome.is_expected for outcome in mutations)
    cpu = sum(outcome.run.cpu_seconds for outcome in outcomes)
    print(f"mutations: {refuted} of {len(mutations)} refuted")
    print(*problems, sep="\n", end="\n" if problems else "")
    print(
        f"model: {'FAILED' if problems else 'as expected'}, {len(outcomes)} checks in {seconds:.0f} s, {cpu:.0f} CPU s"
    )
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="checks whose title contains this")
    options = parser.parse_args()
    started = time.monotonic()
    chosen = [check for check in checks() if options.only.lower() in check.title.lower()]
    print(HEADER)
    outcomes = [run(check) for check in chosen if not check.must_fail]
    with ThreadPoolExecutor(WORKERS) as pool:
        outcomes += pool.map(run, [check for check in chosen if check.must_fail])
    problems = summary(outcomes, time.monotonic() - started, is_whole=not options.only)
    return 1 if problems or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
