"""The versions of Spark, Python and Kafka that are tested together, and the table of them in docs/clusters.md.

tests/spark/test_spark_versions.py runs every combination; tests/docs/test_support_matrix.py compares the table.
`python -m tests.support.support_matrix` writes it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from headrace.spark.session_settings import STREAMS_MIN, version_of

PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"
BEGIN, END = "<!-- support matrix -->", "<!-- end of the support matrix -->"
START_SECONDS_MAX = 20


class Combination(NamedTuple):
    """Versions that are tested together."""

    spark: str
    python: str
    kafka: str

    @property
    def has_streams(self) -> bool:
        """Whether streams are written; otherwise the test expects the error that names the version."""
        return version_of(self.spark) >= STREAMS_MIN


OLDEST = Combination("4.0.0", "3.11", "4.3.0")
COMBINATIONS = (
    OLDEST,
    Combination("4.1.0", "3.11", "4.3.0"),
    Combination("4.2.0", "3.11", "4.3.0"),
    Combination("4.3.0", "3.11", "3.9.1"),
    Combination("4.3.0", "3.11", "4.3.0"),
    Combination("4.3.0", "3.12", "4.3.0"),
    Combination("4.3.0", "3.13", "4.3.0"),
)


def table() -> str:
    """Return the table in Markdown."""
    rows = [f"| {c.spark} | {c.python} | {c.kafka} | yes | {'yes' if c.has_streams else 'no'} |" for c in COMBINATIONS]
    head = "| Spark | Python | Apache Kafka | batches, reading streams | writing streams |"
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def written_table() -> str:
    """Return the table that the page has."""
    match = re.search(f"{BEGIN}\n(.*?)\n{END}", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert match, f"{PAGE.name} has no {BEGIN}"
    return match[1].strip()


def write_table() -> None:
    """Replace the table of the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(re.sub(f"{BEGIN}\n.*?{END}", f"{BEGIN}\n\n{table()}\n\n{END}", text, flags=re.DOTALL))


def find_python(version: str) -> str | None:
    """Return an interpreter of this minor version: on the PATH, or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"{version}.*/bin/python"))]
    return next((candidate for candidate in candidates if candidate and _has_version(candidate, version)), None)


def _has_version(program: str, version: str) -> bool:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([program, "-c", code], capture_output=True, text=True, timeout=START_SECONDS_MAX)
    return done.stdout.strip() == version


if __name__ == "__main__":
    write_table()
