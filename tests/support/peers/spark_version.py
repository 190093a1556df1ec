"""Other versions of Spark than the installed one, each in a separate environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.peers import fetched

SMOKE = Path(__file__).parents[2] / "spark" / "version_smoke.py"
SOURCES = Path(__file__).parents[3] / "src"
SMOKE_SECONDS_MAX = 240


def environment(version: str) -> Path:
    """An environment with this Spark and the dependencies of headrace, but without headrace, which the test adds."""
    fetched.require("java", purpose="tests with Spark")
    return fetched.fetched(folder_name(version), lambda folder: _install(folder, version))


def folder_name(version: str) -> str:
    return f"sparkenv-{version}"


def is_installed(version: str) -> bool:
    return (fetched.CACHE / folder_name(version)).exists()


def smoke(version: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run the smoke test of sink and source on this Spark, and return its results."""
    python = environment(version) / "bin" / "python"
    variables = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    variables |= {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        [str(python), str(SMOKE), json.dumps(job)],
        capture_output=True,
        text=True,
        timeout=SMOKE_SECONDS_MAX,
        env=variables,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


def _install(folder: Path, version: str) -> None:
    fetched.run([sys.executable, "-m", "venv", str(folder)], "no environment for Spark")
    fetched.run(
        [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", f"pyspark=={version}", "pyarrow"],
        f"no PySpark {version}",
    )
