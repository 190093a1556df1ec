"""Parts of the live view that need no browser: formats, history, table pages, payloads, trends."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.ui import formatting, message_reader
from headrace.ui.collector import HISTORY_SECONDS, POINTS_MAX, Rate, Series
from headrace.ui.message_reader import PayloadFormat

pytest.importorskip("nicegui")

from headrace.ui.access import is_loopback
from headrace.ui.charts import POINTS_MAX as DRAWN_MAX
from headrace.ui.charts import byte_steps, thinned
from headrace.ui.elements import parse_int
from headrace.ui.group_feeds import LagHistory
from headrace.ui.pages.groups import trend_of
from headrace.ui.tables import Query, paged


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (formatting.count(1234567, "records"), "1,234,567 records"),
        (formatting.count(1, "records"), "1 record"),
        (formatting.short_count(999), "999"),
        (formatting.short_count(0.25), "0.2"),
        (formatting.short_count(12_345), "12.3 k"),
        (formatting.short_count(999_999), "1,000 k"),
        (formatting.short_count(9_990_000), "10.0 M"),
        (formatting.size(1023), "1,023 B"),
        (formatting.size(1536), "1.5 KiB"),
        (formatting.size(5 * 2**40), "5.0 TiB"),
        (formatting.rate(1234.0), "1,234 records/s"),
        (formatting.size_rate(None), "–"),
        (formatting.milliseconds(2.34), "2.3 ms"),
        (formatting.milliseconds(2340), "2.3 s"),
        (formatting.moment(0), "1970-01-01 00:00:00 UTC"),
        (formatting.moment_ms(1_760_000_000_123), "2025-10-09 08:53:20.123 UTC"),
        (formatting.moment_ms(-1), "no timestamp"),
    ],
)
def test_figures_have_units_and_times_have_a_zone(shown, text):
    assert shown == text


def test_rate_ignores_new_removed_and_reset_counters():
    rate: Rate[str] = Rate()
    rate.sample(100.0, {"a": 10, "b": 5})
    assert rate.points() == []
    rate.sample(102.0, {"a": 30, "b": 5, "new": 1000})
    rate.sample(104.0, {"a": 0, "b": 7, "new": 1000})  # `a` was deleted and created again
    rate.sample(106.0, None)
    rate.sample(108.0, {"a": 10**6})  # growth during a gap is unknown
    assert [value for _, value in rate.points()] == [10.0, 1.0, None]
    assert rate.last is None


def test_series_keeps_15_minutes():
    series = Series()
    for second in range(3 * HISTORY_SECONDS):
        series.add(float(second), 1.0)
    points = series.points()
    assert len(points) <= POINTS_MAX
    assert points[-1][0] - points[0][0] <= HISTORY_SECONDS


def test_thinned_line_keeps_its_peaks():
    points = [(float(at), 1.0) for at in range(5 * DRAWN_MAX)]
    points[1234] = (1234.0, 99.0)
    drawn = thinned(points)
    assert len(drawn) <= DRAWN_MAX
    assert (1234.0, 99.0) in drawn
    assert thinned(points[:10]) == points[:10]


@pytest.mark.parametrize(
    ("highest", "step", "end"),
    [(0, 1, 1), (3, 1, 3), (1000, 256, 1024), (205 * 1024, 100 * 1024, 300 * 1024), (1023 * 2**20, 256 * 2**20, 2**30)],
)
def test_axis_of_bytes_has_round_steps(highest, step, end):
    assert byte_steps(highest) == (step, end)


def test_table_page_is_filtered_sorted_and_cut():
    def page(**query):
        return paged(
            Query(**query),
            [{"n": n} for n in range(100)],
            lambda item: {"n": str(item["n"])},
            keys={"n": lambda item: item["n"]},
            text=lambda item: f"item {item['n']}",
        )

    assert [row["n"] for row in page(first=10, count=3).rows] == ["10", "11", "12"]
    matches = page(count=2, sort_by="n", descending=True, search="ITEM 9")
    assert ([row["n"] for row in matches.rows], matches.total) == (["99", "98"], 11)
    assert page(sort_by="unknown", count=1).rows == [{"n": "0"}]


def test_payloads_are_shown_as_text_json_or_hex():
    assert message_reader.preview(None, PayloadFormat.AUTO) == "null"
    assert message_reader.preview(b"", PayloadFormat.AUTO) == ""
    assert message_reader.preview(b"a\nb", PayloadFormat.AUTO) == "a b"
    assert message_reader.preview(b"\x00\xff", PayloadFormat.AUTO) == "00 ff"
    assert message_reader.preview(b"\x00\xff", PayloadFormat.TEXT) == "\x00�"
    assert message_reader.preview("é".encode() * 10_000, PayloadFormat.AUTO).endswith("é …")
    assert message_reader.full_text(b'{"a":[1]}', PayloadFormat.AUTO) == '{\n  "a": [\n    1\n  ]\n}'
    assert message_reader.full_text(b"7", PayloadFormat.AUTO) == "7"
    assert message_reader.full_text(b"{", PayloadFormat.JSON).startswith("(not JSON")
    assert message_reader.full_text(b"AB", PayloadFormat.HEX).split() == ["00000000", "41", "42", "AB"]
    long = message_reader.full_text(b"x" * (message_reader.SHOWN_BYTES_MAX + 7), PayloadFormat.AUTO)
    assert "7 more bytes" in long


def test_typed_payloads_are_encoded_or_refused():
    assert message_reader.encode_payload("é", PayloadFormat.TEXT, "key") == "é".encode()
    assert message_reader.encode_payload("0a ff", PayloadFormat.HEX, "key") == b"\x0a\xff"
    assert message_reader.encode_payload('{"a": 1}', PayloadFormat.JSON, "value") == b'{"a": 1}'
    for text, payload_format in (("xyz", PayloadFormat.HEX), ("{", PayloadFormat.JSON)):
        with pytest.raises(ConfigError, match="invalid value: "):
            message_reader.encode_payload(text, payload_format, "value")
    assert parse_int(" 12 ", "partition") == 12
    with pytest.raises(ConfigError, match="invalid partition: expected an integer from 0, got '-1'"):
        parse_int("-1", "partition")


def test_loopback_addresses():
    assert is_loopback("127.0.0.1")
    assert is_loopback("127.8.0.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("192.168.1.1")


@pytest.mark.parametrize(
    ("points", "text"),
    [
        ([], "–"),
        ([(100.0, 5)], "–"),
        ([(100.0, 5), (110.0, 5)], "steady"),
        ([(100.0, 5), (110.0, 55)], "growing by 5 records/s"),
        ([(100.0, 55), (105.0, None), (110.0, 5)], "shrinking by 5 records/s"),
        ([(10.0, 1_000_000), (100.0, 5), (110.0, 5)], "steady"),  # older than a minute
    ],
    ids=["empty", "single", "same", "more", "less", "long ago"],
)
def test_trend_of_a_lag_covers_the_last_minute(points, text):
    history = LagHistory()
    for at, value in points:
        history.records.add(at, value)
    trend = trend_of(history)
    assert f"{trend.word} {trend.speed}".rstrip() == text
