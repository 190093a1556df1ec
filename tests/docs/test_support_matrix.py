"""The table of supported versions is that of the tests, and everything else says the same."""

from __future__ import annotations

import tomllib

from headrace.cli.doctor_machine import PYSPARK_MIN
from headrace.spark.session_settings import STREAMS_MIN
from tests.support import support_matrix
from tests.support.doc_pages import PROJECT

BATCHES, STREAMS = (".".join(map(str, version)) for version in (PYSPARK_MIN, STREAMS_MIN))


def test_the_support_matrix_lists_the_tested_combinations():
    assert support_matrix.written_table() == support_matrix.table(), "run python -m tests.support.support_matrix"


def test_the_extra_installs_a_spark_that_writes_streams():
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["spark"] == [f"pyspark>={STREAMS}"]


def test_readme_and_guide_name_both_versions():
    for page in ("README.md", "docs/spark.md", "docs/quickstart.md"):
        assert f"Spark {STREAMS}" in (PROJECT / page).read_text(), page
    for page in ("README.md", "docs/spark.md"):
        assert BATCHES in (PROJECT / page).read_text(), page


def test_the_classifiers_are_the_tested_pythons():
    classifiers = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["classifiers"]
    prefix = "Programming Language :: Python :: 3."
    named = {classifier.removeprefix(prefix) for classifier in classifiers if classifier.startswith(prefix)}
    assert {f"3.{minor}" for minor in named} == {combination.python for combination in support_matrix.COMBINATIONS}
