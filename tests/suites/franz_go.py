"""franz-go: the tests of its client package kgo, from the Go module proxy."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.suites.suite import Outcome, Run, Suite, execute
from tests.support.peers import fetched

PACKAGE = "github.com/twmb/franz-go/pkg/kgo"
RECORDS = 50_000
"""Records of the tests that copy a topic through groups and transactions; franz-go's own CI takes as many."""
RUN_MINUTES_MAX = 25
_ENV = {"GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"}
_RESULT = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+) ", re.MULTILINE)
_STARTED = re.compile(r"^=== RUN +(\w+)$", re.MULTILINE)
_OUTCOMES: dict[str, Outcome] = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}


class FranzGo(Suite):
    name = "franz-go"
    version = "1.22.2"

    def fetch(self, folder: Path) -> None:
        fetched.require("go", purpose="the suite of franz-go")
        folder.mkdir()
        (folder / "go.mod").write_text("module suite\n\ngo 1.24\n")
        for command in (
            ["go", "get", "-t", f"{PACKAGE}@v{self.version}"],
            ["go", "test", "-c", "-o", "kgo.test", PACKAGE],
        ):
            fetched.run(command, "Go could not build the tests of franz-go", cwd=folder, env=_ENV)

    def run(self, run: Run) -> dict[str, Outcome]:
        target = run.target
        env = {
            "KGO_SEEDS": target.bootstrap_servers,
            "KGO_TEST_RF": str(min(target.brokers, 3)),
            "KGO_TEST_RECORDS": str(RECORDS),
            "KGO_TEST_UNSAFE": "1",
            "KGO_TEST_SCRAM_SEEDS": target.scram_bootstrap_servers,
            "KGO_TEST_SCRAM": f"{target.scram_user}:{target.scram_password}:256",
            "KGO_LOG_LEVEL": "none",
        }
        command = [str(run.sources / "kgo.test"), "-test.v", f"-test.timeout={RUN_MINUTES_MAX}m"]
        if run.only:
            command.append(f"-test.run=^({'|'.join(run.only)})$")
        # Some tests read the sources of the package.
        package = subprocess.run(
            ["go", "list", "-f", "{{.Dir}}", PACKAGE], cwd=run.sources, check=True, capture_output=True, text=True
        ).stdout.strip()
        execute(run, command, cwd=Path(package), env=env, seconds_max=(RUN_MINUTES_MAX + 1) * 60)
        return parse(run.log.read_text(errors="replace"))


def parse(output: str) -> dict[str, Outcome]:
    """Return the outcomes of top-level tests. A test that was started but did not end has failed."""
    outcomes: dict[str, Outcome] = dict.fromkeys(_STARTED.findall(output), "failed")
    outcomes.update((name, _OUTCOMES[word]) for word, name in _RESULT.findall(output))
    return outcomes
