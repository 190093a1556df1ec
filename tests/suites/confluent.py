"""confluent-kafka: the integration tests of a checkout of its repository; its source package on PyPI has none."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tests.suites.suite import Outcome, Run, Suite, SuiteError, read_junit, run_pytest

FOLDER = "tests/integration"
# They need a schema registry, start a broker of their own with SASL, or are a script.
IGNORED = (
    "schema_registry",
    "share_consumer_sasl",
    "share_consumer_oauth",
    "admin/test_describe_operations.py",
    "integration_test.py",
)
SHARE_CONSUMER = f"{FOLDER}/share_consumer"
"""Left out of a whole run, because they take half an hour: ONLY=tests/integration/share_consumer runs them."""
WITH_REGISTRY = "test_schema_registry_"
RUN_SECONDS_MAX = 60 * 60


class Confluent(Suite):
    name = "confluent"
    version = "2.15.0"
    must_be_given = "PyPI has confluent-kafka without its tests: give a checkout of its repository, tag v2.15.0"
    broker_options: ClassVar[Mapping[str, str]] = {
        "group.share.record.lock.duration.ms": "1000",
        "group.share.min.record.lock.duration.ms": "1000",
    }

    def fetch(self, folder: Path) -> None:
        raise SuiteError(self.must_be_given)

    def run(self, run: Run) -> dict[str, Outcome]:
        options = [f"--ignore={FOLDER}/{name}" for name in IGNORED]
        if run.only:
            options += ["-k", f"not {WITH_REGISTRY}", *run.only]
        else:
            options += [f"--ignore={SHARE_CONSUMER}", FOLDER]
        env = {"BROKERS": run.target.bootstrap_servers}
        results = run_pytest(run, Path(sys.executable), options, env, RUN_SECONDS_MAX)
        return read_junit(results)
