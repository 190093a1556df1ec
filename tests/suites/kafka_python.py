"""kafka-python: its integration tests, from its source package on PyPI."""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tests.suites.suite import Outcome, Run, Suite, read_junit, run_pytest
from tests.support.peers import fetched

FILES = [f"test/integration/test_{kind}_integration.py" for kind in ("admin", "consumer", "producer")]
"""Those of SASL and TLS start a broker of their own."""
RUN_SECONDS_MAX = 20 * 60


class KafkaPython(Suite):
    name = "kafka-python"
    version = "3.0.12"
    broker_options: ClassVar[Mapping[str, str]] = {"node.id": "0", "group.min.session.timeout.ms": "1000"}

    def fetch(self, folder: Path) -> None:
        with tempfile.TemporaryDirectory() as download:
            source = ["--no-deps", "--no-binary", ":all:", f"kafka-python=={self.version}"]
            fetched.run(
                [sys.executable, "-m", "pip", "download", "-q", "-d", download, *source],
                "pip could not fetch kafka-python",
            )
            (archive,) = Path(download).glob("*.tar.gz")
            with tarfile.open(archive) as package:
                package.extractall(download, filter="data")
            (sources,) = (path for path in Path(download).iterdir() if path.is_dir())
            (sources / "test" / "__init__.py").touch()  # missing, too; without it, Python's own package is taken
            shutil.move(sources, folder)

    def run(self, run: Run) -> dict[str, Outcome]:
        env = {
            "KAFKA_URI": f"kafka://{run.target.bootstrap_servers.split(',')[0]}",
            "KAFKA_VERSION": "4.3.0",
            "KAFKA_ROOT": str(run.sources),  # has to exist, but nothing is started from it
        }
        results = run_pytest(run, Path(sys.executable), list(run.only or FILES), env, RUN_SECONDS_MAX)
        return read_junit(results)
