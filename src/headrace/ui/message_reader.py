"""Messages of a topic, read for the browser: a few at a time, from anywhere, filtered, and never for long.

    Oldest, Offset, Time     forward from there            Forward
    Newest                   back from the end, in windows that grow while little is found      Backward

A reading stops when it has enough rows, when it has come to the end (or the beginning), or when it has looked for as
long as one request may. It always says which, and how far it came; `more` goes on from there. Blocks: a reading is
used by one thread at a time.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from headrace.client.admin import AdminClient, TopicPartition
from headrace.client.facts.filters import Matches
from headrace.client.fetch_data import FetchedRecord
from headrace.client.fetcher import Fetcher
from headrace.client.offsets import Isolation
from headrace.errors import BrokerError, Code, ConfigError

ROWS_MAX = 50
"""Of one request."""
READ_SECONDS_MAX = 3.0
"""How long one request looks for rows."""
READ_RECORDS_MAX = 500_000
READ_BYTES_MAX = 16 * 1024 * 1024
"""Of rows that were found: more than this is not kept for a request."""
POLL_MS = 250.0
POLL_RECORDS_MAX = 1000
FETCH_BYTES_MAX = 8 * 1024 * 1024
PARTITION_BYTES_MAX = 256 * 1024
WINDOW_RECORDS_MAX = 100_000
WINDOW_GROWTH = 4
PLACES_TOLD_MAX = 4


class Begin(Enum):
    """Where to begin."""

    NEWEST = "newest"
    OLDEST = "oldest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(slots=True, frozen=True)
class Wanted:
    """What somebody wants to see."""

    topic: str
    begin: Begin = Begin.NEWEST
    at: int = 0
    """The offset, or the time in milliseconds since 1970."""
    partition: int | None = None
    """None: all."""
    matches: Sequence[Matches] = ()
    isolation: Isolation = Isolation.READ_COMMITTED


class Found(NamedTuple):
    """What a request brought."""

    rows: list[FetchedRecord]
    read: int
    stopped: str
    """Why it stopped, and where, for people."""
    can_go_on: bool
    seconds: float


class Reading(ABC):
    """A way through a topic."""

    def __init__(self, fetcher: Fetcher, wanted: Wanted, partitions: Sequence[TopicPartition]) -> None:
        self._fetcher = fetcher
        self._matches = wanted.matches
        self._partitions = partitions
        self._ready: deque[FetchedRecord] = deque()  # found, and not handed out yet
        self._read = 0  # in this request

    def more(self, rows_max: int = ROWS_MAX, seconds_max: float = READ_SECONDS_MAX) -> Found:
        """The next rows. Comes back in `seconds_max`, about, with what there is; a step is done in any case."""
        began, self._read = time.monotonic(), len(self._ready)
        rows: list[FetchedRecord] = []
        row_bytes, steps = 0, 0
        while True:
            while self._ready and len(rows) < rows_max and row_bytes < READ_BYTES_MAX:
                row = self._ready.popleft()
                row_bytes += len(row.key or b"") + len(row.value or b"")
                rows.append(row)
            seconds = time.monotonic() - began
            if len(rows) >= rows_max or row_bytes >= READ_BYTES_MAX:
                return Found(rows, self._looked_at, self._told("There are more", seconds), True, seconds)
            if self._is_over():
                return Found(rows, self._looked_at, self._told(self._end, seconds), False, seconds)
            if steps and (seconds >= seconds_max or self._read >= READ_RECORDS_MAX):
                why = f"It has looked for {seconds:.1f} s, and may find more"
                return Found(rows, self._looked_at, self._told(why, seconds), True, seconds)
            self._step(max(0.0, seconds_max - seconds))
            steps += 1

    @abstractmethod
    def _step(self, seconds: float) -> None:
        """Read a little, into `_ready`."""

    @abstractmethod
    def _is_over(self) -> bool:
        """Whether there is no more to read."""

    @property
    @abstractmethod
    def _end(self) -> str:
        """What it means that there is no more."""

    @abstractmethod
    def _places(self) -> Mapping[TopicPartition, int]:
        """How far it has come."""

    def _poll(self, seconds: float) -> list[FetchedRecord]:
        """Records that match, of the next ones."""
        records = self._fetcher.poll(min(POLL_MS, seconds * 1000), POLL_RECORDS_MAX)
        self._read += len(records)
        if not self._matches:
            return records
        return [record for record in records if all(matches(record) for matches in self._matches)]

    @property
    def _looked_at(self) -> int:
        """How many records this request has gone through, without those that wait for the next one."""
        return self._read - len(self._ready)

    def _told(self, why: str, seconds: float) -> str:
        places = self._places()
        shown = [
            f"partition {tp.partition} at offset {place:,}" for tp, place in list(places.items())[:PLACES_TOLD_MAX]
        ]
        others = len(places) - len(shown)
        where = ", ".join(shown) + (f" and {others} more partitions" if others > 0 else "")
        return f"{why}. Looked at {self._looked_at:,} records in {seconds:.1f} s; now {where}."


class Forward(Reading):
    """From offsets towards the end, as it is when it is asked."""

    _end = "This is the end for now"

    def __init__(self, fetcher: Fetcher, wanted: Wanted, starts: Mapping[TopicPartition, int]) -> None:
        super().__init__(fetcher, wanted, list(starts))
        fetcher.assign(starts, check=False)
        self._ends: dict[TopicPartition, int] = {}

    def more(self, rows_max: int = ROWS_MAX, seconds_max: float = READ_SECONDS_MAX) -> Found:
        self._ends = self._fetcher.end_offsets(self._partitions)
        return super().more(rows_max, seconds_max)

    def _step(self, seconds: float) -> None:
        found = self._poll(seconds)
        found.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
        self._ready.extend(found)

    def _is_over(self) -> bool:
        return not self._ready and all(self._fetcher.position(tp) >= end for tp, end in self._ends.items())

    def _places(self) -> Mapping[TopicPartition, int]:
        places = {tp: self._fetcher.position(tp) for tp in self._partitions}
        for record in self._ready:  # fetched, and still to be shown
            tp = TopicPartition(record.topic, record.partition)
            places[tp] = min(places[tp], record.offset)
        return places


class Backward(Reading):
    """From the end towards the beginning, the newest first: window by window, each of them read to its end."""

    _end = "This is the beginning"

    def __init__(self, fetcher: Fetcher, wanted: Wanted, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(fetcher, wanted, partitions)
        self._starts = fetcher.beginning_offsets(partitions)
        self._lows = fetcher.end_offsets(partitions)  # what lies above was read
        self._window_records = max(1, ROWS_MAX if not wanted.matches else POLL_RECORDS_MAX)
        self._found: list[FetchedRecord] = []
        self._is_open = False

    def _step(self, seconds: float) -> None:
        if not self._is_open:
            self._open()
        self._found += self._poll(seconds)
        if self._fetcher.is_finished():
            self._found.sort(key=lambda record: (record.timestamp, record.offset), reverse=True)
            self._ready.extend(self._found)
            self._found, self._is_open = [], False

    def _open(self) -> None:
        begin = {tp: max(self._starts[tp], low - self._window_records) for tp, low in self._lows.items()}
        left = [tp for tp, low in self._lows.items() if low > begin[tp]]
        self._fetcher.assign({tp: begin[tp] for tp in left}, {tp: self._lows[tp] for tp in left}, check=False)
        self._lows = begin
        self._window_records = min(self._window_records * WINDOW_GROWTH, WINDOW_RECORDS_MAX)
        self._is_open = True

    def _is_over(self) -> bool:
        return not self._is_open and all(low <= self._starts[tp] for tp, low in self._lows.items())

    def _places(self) -> Mapping[TopicPartition, int]:
        return self._lows


def open_reading(admin: AdminClient, wanted: Wanted, *, follow: bool = False) -> Reading:
    """Begin to read; nothing is read yet. With `follow`, what is still to come."""
    partitions = _partitions(admin, wanted)
    fetcher = Fetcher(
        admin.client,
        isolation="read_committed" if wanted.isolation is Isolation.READ_COMMITTED else "read_uncommitted",
        out_of_range="earliest",
        max_wait_ms=int(POLL_MS),
        max_bytes=FETCH_BYTES_MAX,
        partition_bytes_max=PARTITION_BYTES_MAX,
    )
    if follow:
        return Forward(fetcher, wanted, fetcher.end_offsets(partitions))
    if wanted.begin is Begin.NEWEST:
        return Backward(fetcher, wanted, partitions)
    return Forward(fetcher, wanted, _starts(fetcher, wanted, partitions))


def _partitions(admin: AdminClient, wanted: Wanted) -> list[TopicPartition]:
    described = admin.describe_topics([wanted.topic])[wanted.topic]
    count = len(described.partitions)
    if wanted.partition is None:
        return [TopicPartition(wanted.topic, info.partition) for info in described.partitions if info.leader >= 0]
    if not 0 <= wanted.partition < count:
        raise BrokerError(
            f"topic {wanted.topic!r} has {count} partitions, from 0 on, and none with number {wanted.partition}",
            code=Code.UNKNOWN_TOPIC_OR_PARTITION,
        )
    return [TopicPartition(wanted.topic, wanted.partition)]


def _starts(fetcher: Fetcher, wanted: Wanted, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Where to begin in each partition: nowhere before its first offset, nor after its end."""
    firsts, ends = fetcher.beginning_offsets(partitions), fetcher.end_offsets(partitions)
    if wanted.begin is Begin.OFFSET:
        return {tp: min(max(wanted.at, firsts[tp]), ends[tp]) for tp in partitions}
    if wanted.begin is Begin.TIME:
        found = fetcher.offsets_for_times(dict.fromkeys(partitions, wanted.at))
        return {tp: answer.offset if answer.offset >= 0 else ends[tp] for tp, answer in found.items()}
    return firsts


PREVIEW_CHARS_MAX = 160
SHOWN_BYTES_MAX = 256 * 1024
"""Of one value, in full: more would only make the browser slow."""
HEX_ROW_BYTES = 16
NULL = "null"


class Form(Enum):
    """How to show bytes."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


def preview(data: bytes | None, form: Form) -> str:
    """A line of it."""
    if data is None:
        return NULL
    cut = data[: PREVIEW_CHARS_MAX * 4]
    text = _text(cut, is_cut=len(cut) < len(data))
    if form is Form.HEX or (form is not Form.TEXT and text is None):
        shown = data[: PREVIEW_CHARS_MAX // 3].hex(" ")
        return shown + (" …" if len(data) * 3 > PREVIEW_CHARS_MAX else "")
    line = " ".join((text if text is not None else cut.decode(errors="replace")).split("\n"))
    is_short = len(line) <= PREVIEW_CHARS_MAX and len(cut) == len(data)
    return line if is_short else f"{line[:PREVIEW_CHARS_MAX]} …"


def whole(data: bytes | None, form: Form) -> str:
    """All of it, in lines; what is too long is cut, and says so."""
    if data is None:
        return NULL
    cut = data[:SHOWN_BYTES_MAX]
    left = len(data) - len(cut)
    more = f"\n… and {left:,} bytes more; `headrace consume` prints all of them" if left else ""
    text = _text(cut, is_cut=bool(left))
    if form is Form.HEX or (form is Form.AUTO and text is None):
        return hex_dump(cut) + more
    shown = text if text is not None else cut.decode(errors="replace")
    if form is Form.TEXT or left:
        return shown + more
    try:
        parsed = json.loads(cut)
    except ValueError as error:
        return f"(this is no JSON: {error})\n{shown}" if form is Form.JSON else shown
    if form is Form.AUTO and not isinstance(parsed, dict | list):
        return shown
    return json.dumps(parsed, indent=2, ensure_ascii=False)


def hex_dump(data: bytes) -> str:
    """Offset, bytes, and what of them is text."""
    lines = []
    for at in range(0, len(data), HEX_ROW_BYTES):
        row = data[at : at + HEX_ROW_BYTES]
        seen = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{HEX_ROW_BYTES * 3}} {seen}")
    return "\n".join(lines)


def encoded(text: str, form: Form, what: str) -> bytes:
    """What somebody typed, as bytes. JSON is checked, and sent as it was typed."""
    if form is Form.HEX:
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise ConfigError(f"the {what} is no hex: {error}; write it as 0a ff 10") from error
    if form is Form.JSON:
        try:
            json.loads(text)
        except ValueError as error:
            raise ConfigError(f"the {what} is no JSON: {error}") from error
    return text.encode()


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """As text, if it is some: UTF-8, and nothing that is not to be seen. A character may be cut in two at the end."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(data) - 4:
            return None
        text = data[: error.start].decode()
    return text if all(char.isprintable() or char in "\n\r\t" for char in text) else None
