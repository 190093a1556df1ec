"""Rows as text for dead letters: also those that Python cannot represent."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from headrace.spark.row_text import row_texts

AFTER_9999 = pa.array([3_000_000], pa.int32()).cast(pa.date32())
DATES = pa.map_(pa.date32(), pa.int32())
POINTS = pa.map_(pa.struct([("x", pa.int32())]), pa.int32())


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.StructArray.from_arrays([AFTER_9999], ["d"]), {"d": "3000000 (date32[day])"}),
        (pa.array([[9 * 10**18]]).cast(pa.list_(pa.timestamp("us"))), ["9000000000000000000 (timestamp[us])"]),
        (pa.array([[(0, 1)]], pa.map_(pa.int32(), pa.int32())).cast(DATES), {"1970-01-01": 1}),
        (pa.array([[({"x": 1}, 2)]], POINTS), {'{"x": 1}': 2}),
        (pa.array([[(b"\xff", 2)]], pa.map_(pa.binary(), pa.int32())), {"/w==": 2}),
        (pa.array([{"x": float("nan"), "y": [float("inf")]}]), {"x": "nan", "y": ["inf"]}),
        (pa.array([{"x": None, "y": 1.5}]), {"x": None, "y": 1.5}),
    ],
)
def test_each_row_is_valid_json_whatever_it_has(column, expected):
    def fail(name):
        raise AssertionError(f"{name} is not JSON")

    (text,) = row_texts(column)
    assert text is not None
    assert json.loads(text, parse_constant=fail) == expected


def test_null_rows_stay_null_beside_dates_after_the_year_9999():
    column = pa.array([3_000_000, None, 0], pa.int32()).cast(pa.date32())
    assert row_texts(column) == ["3000000 (date32[day])", None, "1970-01-01"]
