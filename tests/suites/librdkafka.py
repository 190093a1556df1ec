"""librdkafka: its regression tests in C and C++, from the sources in Confluent's package for JavaScript.

Only the tests that need a broker are run, in librdkafka's quick mode, as its own CI does.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tarfile
import tempfile
from pathlib import Path

from tests.suites.suite import Outcome, Run, Suite, execute
from tests.support.peers import fetched, java
from tests.support.peers.maven import kafka_jars

NPM_PACKAGE = "@confluentinc/kafka-javascript@1.10.1"
LIBRARY = Path("package/deps/librdkafka")
BROKER_VERSION = "4.3.0"
TOOLS = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
RUN_SECONDS_MAX = 45 * 60
PARALLEL = 3
_OUTCOMES: dict[str, Outcome] = {"PASSED": "passed", "FAILED": "failed", "RUNNING": "failed", "SKIPPED": "skipped"}
_ENTRY = re.compile(r'"name": "([^"]+)", "state": "(\w+)"')


class Librdkafka(Suite):
    name = "librdkafka"
    version = "2.15.1"

    def fetch(self, folder: Path) -> None:
        fetched.require("npm", "make", "c++", purpose="the suite of librdkafka")
        with tempfile.TemporaryDirectory() as download:
            fetched.run(["npm", "pack", NPM_PACKAGE], "npm could not fetch librdkafka", cwd=Path(download))
            (archive,) = Path(download).glob("*.tgz")
            with tarfile.open(archive) as package:
                package.extractall(download, filter="data")
            shutil.move(Path(download) / LIBRARY, folder)
        jobs = f"-j{os.cpu_count() or 1}"
        for command in (
            ["./configure", "--disable-gssapi", "--disable-curl"],
            ["make", jobs, "libs"],
            ["make", jobs, "-C", "tests", "build"],
        ):
            fetched.run(command, "the tests of librdkafka could not be built", cwd=folder)

    def run(self, run: Run) -> dict[str, Outcome]:
        report = run.log.with_suffix(".json")
        report.unlink(missing_ok=True)
        config = run.log.with_suffix(".conf")
        config.write_text(
            f"bootstrap.servers={run.target.bootstrap_servers}\ntest.timeout.multiplier=2\ntest.topic.random=true\n"
        )
        env = {
            "RDKAFKA_TEST_CONF": str(config),
            "TEST_REPORT": str(report),
            "TEST_KAFKA_VERSION": BROKER_VERSION,
            "BROKERS": run.target.bootstrap_servers,
            "KAFKA_PATH": str(_with_tools(run.log.parent / "kafka")),
            "LD_LIBRARY_PATH": f"{run.sources / 'src'}:{run.sources / 'src-cpp'}",
        }
        if run.only:
            env["TESTS"] = ",".join(name[:4] for name in run.only)
        # -L: no tests without a broker. -Q: quick. -E: no sockem, which puts itself between test and socket.
        command = ["./test-runner", f"-p{1 if run.only else PARALLEL}", "-L", "-K", "-Q", "-E"]
        execute(run, command, cwd=run.sources / "tests", env=env, seconds_max=RUN_SECONDS_MAX)
        return parse(report.read_text()) if report.exists() else {}


def _with_tools(folder: Path) -> Path:
    """Return the folder with the scripts of Kafka's distribution that the tests call."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for name, main in TOOLS.items():
        command = java.java_command(kafka_jars(BROKER_VERSION), main, options=java.SHORT_LIVED)
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        script.chmod(0o755)
    return folder


def parse(report: str) -> dict[str, Outcome]:
    """Return the outcomes in a report of the test runner: JSON, but for texts with quotes in them."""
    return {name: _OUTCOMES.get(state, "skipped") for name, state in _ENTRY.findall(report) if name != "<MAIN>"}
