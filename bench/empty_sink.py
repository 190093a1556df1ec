"""`format("empty")`: a Python sink that does nothing, for `make bench-spark`.

What a batch takes with it is what Spark takes to hand rows to Python, and a commit: the least that a Python sink can
have. It is a module of its own, because Spark pickles a class of the main module by value, which takes longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class EmptyDataSource(DataSource):
    """Rows come to Python as Arrow batches, and no further."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return EmptyWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return EmptyStreamWriter()


class EmptyWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class EmptyStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        pass
