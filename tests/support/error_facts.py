"""How Kafka's Java client classifies error codes, for comparison."""

from __future__ import annotations

from headrace.errors import ERROR_CODES

CODES = sorted(code for code in ERROR_CODES if code)

# The subclasses of RetriableException, and of InvalidMetadataException among them, by the codes they stand for.
RETRIED = frozenset(
    {2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84}
    | {88, 89, 100, 103, 106, 122, 123, 133}
)
REFRESHED = frozenset({3, 5, 6, 9, 13, 56, 72, 74, 80, 83, 84, 100, 103})
