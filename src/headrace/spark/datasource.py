"""The data source that Spark finds by the name `headrace`.

Spark creates one for every query, batch and task, and imports this module to look up the name. It therefore stays small
and imports readers and writers inside its methods: each process needs only one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class HeadraceDataSource(DataSource):
    """`format("headrace")`: Kafka topics, with the options and columns of Spark's own Kafka source and sink."""

    _is_unpickled = False
    """Spark creates a data source to plan a batch, and unpickles that of the query in another process to commit it."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType | str:
        from headrace.spark.source_options import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.source import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from headrace.spark.source import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from headrace.spark.python_process import prepare_process
        from headrace.spark.sink import BatchWriter

        prepare_process()
        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from headrace.spark.python_process import prepare_process
        from headrace.spark.sink import StreamWriter

        prepare_process()
        return StreamWriter(self.options, schema, overwrite, is_planning=not self._is_unpickled)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._is_unpickled = True
