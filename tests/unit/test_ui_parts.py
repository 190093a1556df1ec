"""Parts of the live view that need no browser: formats, histories, pages of tables, what bytes look like."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.ui import formatting, message_reader
from headrace.ui.collector import HISTORY_SECONDS, POINTS_MAX, Rate, Series
from headrace.ui.message_reader import Form

pytest.importorskip("nicegui")

from headrace.ui.access import is_loopback
from headrace.ui.charts import POINTS_MAX as DRAWN_MAX
from headrace.ui.charts import byte_steps, thinned
from headrace.ui.elements import whole_number
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
        (formatting.moment_ms(-1), "no time"),
    ],
)
def test_figures_have_units_and_times_their_zone(shown, text):
    assert shown == text


def test_a_rate_is_of_what_grew_and_of_nothing_that_came_went_or_began_again():
    rate: Rate[str] = Rate()
    rate.read(100.0, {"a": 10, "b": 5})
    assert rate.points() == []
    rate.read(102.0, {"a": 30, "b": 5, "new": 1000})
    rate.read(104.0, {"a": 0, "b": 7, "new": 1000})  # `a` was deleted and made again
    rate.read(106.0, None)
    rate.read(108.0, {"a": 10**6})  # how much of it came while nobody could look is not known
    assert [value for _, value in rate.points()] == [10.0, 1.0, None]
    assert rate.last is None


def test_a_history_keeps_fifteen_minutes_and_no_more():
    series = Series()
    for second in range(3 * HISTORY_SECONDS):
        series.add(float(second), 1.0)
    points = series.points()
    assert len(points) <= POINTS_MAX
    assert points[-1][0] - points[0][0] <= HISTORY_SECONDS


def test_a_line_is_thinned_but_keeps_its_peaks():
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
def test_an_axis_of_bytes_has_round_steps(highest, step, end):
    assert byte_steps(highest) == (step, end)


def test_a_page_of_a_table_is_searched_sorted_and_cut():
    def ask(**query):
        return paged(
            Query(**query),
            [{"n": n} for n in range(100)],
            lambda item: {"n": str(item["n"])},
            keys={"n": lambda item: item["n"]},
            text=lambda item: f"item {item['n']}",
        )

    assert [row["n"] for row in ask(first=10, count=3).rows] == ["10", "11", "12"]
    found = ask(count=2, sort_by="n", descending=True, search="ITEM 9")
    assert ([row["n"] for row in found.rows], found.total) == (["99", "98"], 11)
    assert ask(sort_by="unheard-of", count=1).rows == [{"n": "0"}]


def test_bytes_are_shown_as_what_they_are():
    assert message_reader.preview(None, Form.AUTO) == "null"
    assert message_reader.preview(b"", Form.AUTO) == ""
    assert message_reader.preview(b"a\nb", Form.AUTO) == "a b"
    assert message_reader.preview(b"\x00\xff", Form.AUTO) == "00 ff"
    assert message_reader.preview(b"\x00\xff", Form.TEXT) == "\x00�"
    assert message_reader.preview("é".encode() * 10_000, Form.AUTO).endswith("é …")
    assert message_reader.whole(b'{"a":[1]}', Form.AUTO) == '{\n  "a": [\n    1\n  ]\n}'
    assert message_reader.whole(b"7", Form.AUTO) == "7"
    assert message_reader.whole(b"{", Form.JSON).startswith("(this is no JSON")
    assert message_reader.whole(b"AB", Form.HEX).split() == ["00000000", "41", "42", "AB"]
    long = message_reader.whole(b"x" * (message_reader.SHOWN_BYTES_MAX + 7), Form.AUTO)
    assert "7 bytes more" in long


def test_what_is_typed_becomes_bytes_or_says_why_not():
    assert message_reader.encoded("é", Form.TEXT, "key") == "é".encode()
    assert message_reader.encoded("0a ff", Form.HEX, "key") == b"\x0a\xff"
    assert message_reader.encoded('{"a": 1}', Form.JSON, "value") == b'{"a": 1}'
    for text, form in (("xyz", Form.HEX), ("{", Form.JSON)):
        with pytest.raises(ConfigError, match="the value is no"):
            message_reader.encoded(text, form, "value")
    assert whole_number(" 12 ", "partition") == 12
    with pytest.raises(ConfigError, match="partition: a whole number is wanted"):
        whole_number("-1", "partition")


def test_what_only_this_machine_can_reach():
    assert is_loopback("127.0.0.1")
    assert is_loopback("127.8.0.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("192.168.1.1")
