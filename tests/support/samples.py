"""Sample records for the formats: nulls, empty values, headers, unordered timestamps, several codec blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headrace.wire.layout import Record

TIME_MS = 1_700_000_000_000
_SEED = 20_010_902


def small() -> list[Record]:
    """Return compressible records of each kind, at offsets from 0."""
    return [
        Record(0, TIME_MS, b"key", b"value", ()),
        Record(1, TIME_MS + 250, None, b"no key", (("plain", b"1"), ("plain", b"2"), ("empty", b""), ("null", None))),
        Record(2, TIME_MS - 5_000, b"", b"", (("höhe", "Übergefäß".encode()),)),
        Record(3, TIME_MS + 1, b"no value", None, ()),
        Record(4, TIME_MS + 100_000_000, None, None, (("", b"nameless"),)),
        Record(5, TIME_MS, b"long", b"again and " * 300, ()),
    ]


def large() -> list[Record]:
    """Return a few hundred kilobytes of records, some of them incompressible."""
    rng = random.Random(_SEED)
    values = [b"%d " % n * rng.randrange(1, 40) for n in range(2_000)]
    values[700:700] = [rng.randbytes(100_000), b"tide " * 30_000, rng.randbytes(70_000)]
    return [Record(n, TIME_MS + rng.randrange(60_000), b"%x" % n, value, ()) for n, value in enumerate(values)]


def shifted(records: Sequence[Record], base_offset: int) -> list[Record]:
    """Return the same records at higher offsets."""
    return [record._replace(offset=record.offset + base_offset) for record in records]
