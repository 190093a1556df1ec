"""Regular expressions of consumer groups, matched by RE2: Kafka's coordinator uses RE2/J, with the same syntax.

The time of RE2 is linear in pattern and text, and its memory is bounded, so that a member cannot block the broker with
a pattern. RE2 comes with pyarrow, which is imported by the first regular expression only, on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from headrace.errors import BrokerError, Code

PATTERN_BYTES_MAX = 32_767
"""The longest pattern that fits into the key of its record."""


async def check_regex(pattern: str) -> None:
    """Raise INVALID_REGULAR_EXPRESSION unless RE2 accepts the pattern."""
    size = len(pattern.encode())
    if size > PATTERN_BYTES_MAX:
        raise _invalid(f"SubscribedTopicRegex has {size} bytes: expected at most {PATTERN_BYTES_MAX}")
    await asyncio.to_thread(_match, pattern, [""])


async def match_topics(patterns: Collection[str], topics: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the topics that each pattern matches as a whole. A pattern that RE2 refuses matches none."""
    return await asyncio.to_thread(_match_all, tuple(patterns), topics)


def _match_all(patterns: Sequence[str], topics: Sequence[str]) -> dict[str, frozenset[str]]:
    matches = {}
    for pattern in patterns:
        try:
            matches[pattern] = frozenset(_match(pattern, topics))
        except BrokerError:  # written by a coordinator with another version of RE2
            matches[pattern] = frozenset()
    return matches


def _match(pattern: str, topics: Sequence[str]) -> list[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    names = pa.array(topics, pa.string())
    try:
        # The pattern alone first: "a)|(b" is valid only within the parentheses of the second one.
        pc.match_substring_regex(pa.array([""], pa.string()), pattern)
        mask = pc.match_substring_regex(names, rf"\A(?:{pattern})\z")
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise _invalid(f"SubscribedTopicRegex `{pattern[:300]}` is not a valid regular expression: {reason}.") from None
    matched: list[str] = names.filter(mask).to_pylist()
    return matched


def _invalid(message: str) -> BrokerError:
    return BrokerError(message, code=Code.INVALID_REGULAR_EXPRESSION)
