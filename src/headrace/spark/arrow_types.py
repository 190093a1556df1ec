"""Arrow columns of decoded records, in the types that Spark takes.

    Arrow type → spark_type → Spark type → arrow_type → Arrow type that Spark takes → conform(column)

| Arrow | Spark |
|---|---|
| uint8, uint16, uint32, uint64 | SMALLINT, INT, BIGINT, DECIMAL(20,0) |
| float16 | FLOAT |
| decimal128; decimal256 | DECIMAL; STRING above 38 digits, which Spark does not have |
| fixed_size_binary | BINARY |
| timestamp with a zone; without | TIMESTAMP; TIMESTAMP_NTZ (nanoseconds are rounded down to microseconds) |
| time32, time64 | TIME; before Spark 4.3 BIGINT: microseconds since midnight |
| duration | INTERVAL DAY TO SECOND |
| dictionary, large types | their plain type |

The others have the same type in Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from headrace.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGITS_MAX = 38
"""Of a decimal in Spark."""
_UINT64_DIGITS = 20
HAS_TIME = tuple(int(part) for part in pyspark.__version__.split(".")[:2]) >= (4, 3)
"""Whether TIME is enabled by default."""
_TIME_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 6}

_SAME: dict[pa.DataType, spark.DataType] = {
    pa.null(): spark.NullType(),
    pa.bool_(): spark.BooleanType(),
    pa.int8(): spark.ByteType(),
    pa.int16(): spark.ShortType(),
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.uint8(): spark.ShortType(),
    pa.uint16(): spark.IntegerType(),
    pa.uint32(): spark.LongType(),
    pa.uint64(): spark.DecimalType(_UINT64_DIGITS, 0),
    pa.float16(): spark.FloatType(),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.string(): spark.StringType(),
    pa.large_string(): spark.StringType(),
    pa.binary(): spark.BinaryType(),
    pa.large_binary(): spark.BinaryType(),
    pa.date32(): spark.DateType(),
    pa.date64(): spark.DateType(),
}


def spark_type(arrow_type: pa.DataType) -> spark.DataType:
    """Return the Spark type of a column; raises SchemaError if there is none."""
    kind = pa.types
    if arrow_type in _SAME:
        return _SAME[arrow_type]
    if kind.is_struct(arrow_type):
        return spark.StructType(
            [spark.StructField(field.name, spark_type(field.type), field.nullable) for field in arrow_type]
        )
    if kind.is_map(arrow_type):
        item = arrow_type.item_field
        return spark.MapType(spark_type(arrow_type.key_type), spark_type(item.type), item.nullable)
    if kind.is_list(arrow_type) or kind.is_large_list(arrow_type) or kind.is_fixed_size_list(arrow_type):
        return spark.ArrayType(spark_type(arrow_type.value_type), arrow_type.value_field.nullable)
    if kind.is_dictionary(arrow_type):
        return spark_type(arrow_type.value_type)
    if kind.is_decimal(arrow_type):
        if arrow_type.precision > DIGITS_MAX:
            return spark.StringType()
        return spark.DecimalType(arrow_type.precision, arrow_type.scale)
    if kind.is_fixed_size_binary(arrow_type):
        return spark.BinaryType()
    if kind.is_timestamp(arrow_type):
        return spark.TimestampNTZType() if arrow_type.tz is None else spark.TimestampType()
    if kind.is_time(arrow_type):
        return spark.TimeType(_TIME_DIGITS[arrow_type.unit]) if HAS_TIME else spark.LongType()
    if kind.is_duration(arrow_type):
        return spark.DayTimeIntervalType()
    raise SchemaError(f"Spark has no type for Arrow type {arrow_type}; leave the field out of the schema of the query")


def arrow_type(data_type: spark.DataType) -> pa.DataType:
    """Return the Arrow type in which Spark takes and gives a column, with UTC as the zone of timestamps."""
    return to_arrow_type(data_type, timezone="UTC")


def conform(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Return a column in the type that `arrow_type` gives for its Spark type.

    Fields of structs are matched by name; those that the target does not have are left out. Values are copied only
    where the type differs. Raises pa.ArrowInvalid if a value is out of the range of the target.
    """
    if column.type.equals(target):
        return column
    kind = pa.types
    if kind.is_dictionary(column.type):
        return conform(column.dictionary_decode(), target)
    if kind.is_struct(target):
        children = [conform(column.field(field.name), field.type) for field in target]
        return _struct(column, children, target)
    if kind.is_map(target):
        entries = pa.StructArray.from_arrays(
            [conform(column.keys, target.key_type), conform(column.items, target.item_type)],
            fields=[target.key_field, target.item_field],
        )
        return _with_child(column, target, entries)
    if kind.is_list(target):
        if not kind.is_list(column.type):
            column = column.cast(pa.list_(column.type.value_field))
        return _with_child(column, target, conform(column.values, target.value_type))
    return _conform_leaf(column, target)


def conform_rows(column: pa.Array, target: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Return a column in another type, and the rows that it cannot hold, which are null."""
    try:
        return conform(column, target), []
    except pa.ArrowInvalid:
        if len(column) == 1:
            return pa.nulls(1, target), [0]
    # Copies, because slices of lists keep the items of all rows.
    half = len(column) // 2
    first, first_rows = conform_rows(column.take(pa.array(range(half))), target)
    last, last_rows = conform_rows(column.take(pa.array(range(half, len(column)))), target)
    return pa.concat_arrays([first, last]), first_rows + [half + row for row in last_rows]


def _struct(column: pa.Array, children: Sequence[pa.Array], target: pa.DataType) -> pa.Array:
    if not children:
        return column.cast(target)
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _with_child(column: pa.Array, target: pa.DataType, child: pa.Array) -> pa.Array:
    """Return a list or map with the rows of a column and other items."""
    validity, offsets = column.buffers()[:2]
    return pa.Array.from_buffers(
        target, len(column), [validity, offsets], column.null_count, column.offset, children=[child]
    )


def _conform_leaf(column: pa.Array, target: pa.DataType) -> pa.Array:
    kind = pa.types
    if kind.is_timestamp(target) and column.type.unit == "ns":
        return pc.floor_temporal(column, unit="microsecond").cast(target)
    if kind.is_duration(target) and column.type.unit == "ns":
        return pc.divide(column.cast(pa.int64()), 1000).cast(target)
    if kind.is_time(column.type) and kind.is_integer(target):
        return column.cast(pa.time64("us"), safe=False).cast(target)
    return column.cast(target)
