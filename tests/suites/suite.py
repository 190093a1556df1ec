"""What a suite of another project has to say: how it is fetched and built, how it is run, and what its output means."""

from __future__ import annotations

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal
from xml.etree import ElementTree

Outcome = Literal["passed", "failed", "skipped"]


class SuiteError(Exception):
    """A suite cannot be fetched or run."""


@dataclass(frozen=True, slots=True)
class Target:
    """Brokers to run a suite on."""

    name: str
    bootstrap_servers: str
    brokers: int
    scram_bootstrap_servers: str
    scram_user: str
    scram_password: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a suite: all its tests, or those with the names in `only`. Its output goes to the file `log`."""

    sources: Path
    target: Target
    log: Path
    only: Collection[str] = ()


class Suite(ABC):
    """The test-suite of another project. Tests are known by their names."""

    name: ClassVar[str]
    version: ClassVar[str]
    broker_options: ClassVar[Mapping[str, str]] = {}
    """Options of the brokers, beyond those that all suites share."""
    must_be_given: ClassVar[str] = ""
    """Why no package registry has the tests; empty if one has."""

    @abstractmethod
    def fetch(self, folder: Path) -> None:
        """Fetch the tests, and build what they need, in a new folder of the cache."""

    @abstractmethod
    def run(self, run: Run) -> dict[str, Outcome]:
        """Run tests and return their outcomes."""


def execute(run: Run, command: list[str], *, cwd: Path, env: Mapping[str, str], seconds_max: float) -> None:
    """Run a command with its output in the log of the run. It is killed with its children if it takes too long."""
    with run.log.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            log.write(f"\nkilled after {seconds_max:g} s\n".encode())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


PLUGIN = Path(__file__).parent / "plugin"
PYTEST_TEST_SECONDS_MAX = 180


def run_pytest(run: Run, python: Path, arguments: list[str], env: Mapping[str, str], seconds_max: float) -> Path:
    """Run pytest in the sources with the stand-ins of `plugin`; return the file with the results."""
    results = run.log.with_suffix(".xml")
    results.unlink(missing_ok=True)
    command = [
        *(str(python), "-m", "pytest", "-q", "-p", "external_brokers", f"--timeout={PYTEST_TEST_SECONDS_MAX}"),
        *("-p", "no:headrace", "-o", "junit_family=xunit1", f"--junitxml={results}", *arguments),
    ]
    paths = os.pathsep.join([str(PLUGIN), str(run.sources)])
    execute(run, command, cwd=run.sources, env={"PYTHONPATH": paths, **env}, seconds_max=seconds_max)
    return results


def read_junit(path: Path) -> dict[str, Outcome]:
    """Return outcomes by test name (file::test) from a results file of pytest."""
    if not path.exists():
        return {}
    outcomes: dict[str, Outcome] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('file')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            outcomes[name] = "failed"
        elif "skipped" not in kinds:
            outcomes.setdefault(name, "passed")  # an error at the end of the test is a second entry
        else:
            outcomes.setdefault(name, "skipped")
    return outcomes
