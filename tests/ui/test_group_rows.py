"""Which way a lag goes, in words."""

from __future__ import annotations

import pytest

from headrace.ui.group_feeds import LagHistory
from headrace.ui.pages.groups import trend_of


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([], "–"),
        ([(100.0, 5)], "–"),
        ([(100.0, 5), (110.0, 5)], "steady"),
        ([(100.0, 5), (110.0, 55)], "grows by 5 records/s"),
        ([(100.0, 55), (105.0, None), (110.0, 5)], "shrinks by 5 records/s"),
        ([(10.0, 1_000_000), (100.0, 5), (110.0, 5)], "steady"),  # what is more than a minute ago does not count
    ],
    ids=["nothing", "one", "same", "more", "less", "long ago"],
)
def test_the_trend_of_a_lag_is_that_of_the_last_minute(points, said):
    history = LagHistory()
    for at, value in points:
        history.records.add(at, value)
    trend = trend_of(history)
    assert f"{trend.word} {trend.speed}".rstrip() == said
