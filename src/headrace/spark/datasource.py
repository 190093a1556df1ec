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

    from headrace.spark.read_columns import SchemasByField


class HeadraceDataSource(DataSource):
    """`format("headrace")`: Kafka topics, with the options and columns of Spark's own Kafka source and sink."""

    _is_unpickled = False
    """Spark creates a data source to plan a batch, and unpickles that of the query in another process to commit it."""

    _schemas: SchemasByField | None = None
    """The readers' schemas of formats, for all readers of a DataFrame. None if the user gave the DataFrame's schema."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType | str:
        """Return the columns. Spark calls this when a DataFrame is created, so invalid options fail here."""
        from headrace.spark.source_options import Mode, parse, schema_of

        options = parse(self.options, Mode.ANY)
        if options.formats is None:
            return schema_of(options)
        from headrace.spark.typed_columns import find_schemas, spark_types

        self._schemas = find_schemas(options)
        return schema_of(options, spark_types(options, self._schemas))

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.source import BatchReader

        return BatchReader(self.options, schema, self._schemas)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from headrace.spark.source import StreamReader

        return StreamReader(self.options, schema, self._schemas)

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
