"""Other versions of Spark than the installed one, each in a separate environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.peers import fetched
from tests.support.support_matrix import Combination, find_python

SMOKE = Path(__file__).parents[2] / "spark" / "version_smoke.py"
SOURCES = Path(__file__).parents[3] / "src"
SMOKE_SECONDS_MAX = 240


def environment(combination: Combination) -> Path:
    """An environment with this Spark and the dependencies of headrace, but without headrace, which the test adds."""
    fetched.require("java", purpose="tests with Spark")
    interpreter = find_python(combination.python)
    if interpreter is None:
        fetched.skip(f"no Python {combination.python} on the PATH or in pyenv, which this combination needs")
    return fetched.fetched(folder_name(combination), lambda folder: _install(folder, interpreter, combination))


def folder_name(combination: Combination) -> str:
    return f"sparkenv-{combination.spark}-{combination.python}"


def is_installed(combination: Combination) -> bool:
    return (fetched.CACHE / folder_name(combination)).exists()


def smoke(combination: Combination, job: dict[str, Any]) -> dict[str, Any]:
    """Run the smoke test of sink and source on this Spark and Python, and return its results."""
    python = environment(combination) / "bin" / "python"
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


def _install(folder: Path, interpreter: str, combination: Combination) -> None:
    fetched.run([interpreter, "-m", "venv", str(folder)], "no environment for Spark")
    fetched.run(
        [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", f"pyspark=={combination.spark}", "pyarrow"],
        f"no PySpark {combination.spark}",
    )
