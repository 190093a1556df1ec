"""Two page readers: one for pages without Spark, and one whose Spark session all other pages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.reader import Reader


@pytest.fixture(scope="session")
def plain_reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with Reader(tmp_path_factory.mktemp("reader")) as reader:
        yield reader


@pytest.fixture(scope="session")
def spark_reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    pytest.importorskip("pyspark")
    with Reader(tmp_path_factory.mktemp("spark-reader")) as reader:
        yield reader
