"""Readers for the message browser: a page of messages at a time, from any position, filtered, in bounded time.

    oldest, offset, time     ForwardReader: from there towards the end
    newest                   BackwardReader: from the end, in windows that grow while few messages match

A read stops when it has enough messages, at the end (or beginning) of the topic, or when its time is up. The result
says why, and how far it came; the next read continues from there. Reads block; one thread at a time may use a reader.
The second half of the module formats keys, values and headers as text, JSON or hex.
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
from headrace.client.fetch_data import FetchedRecord
from headrace.client.fetcher import Fetcher
from headrace.client.offsets import Isolation
from headrace.client.text_formats import RecordFilter
from headrace.errors import BrokerError, Code, ConfigError

ROWS_MAX = 50
"""Messages returned by one read."""
READ_SECONDS_MAX = 3.0
READ_RECORDS_MAX = 500_000
"""Records scanned by one read."""
READ_BYTES_MAX = 16 * 1024 * 1024
"""Keys and values returned by one read."""
POLL_MS = 250.0
POLL_RECORDS_MAX = 1000
FETCH_BYTES_MAX = 8 * 1024 * 1024
PARTITION_BYTES_MAX = 256 * 1024
WINDOW_RECORDS_MAX = 100_000
WINDOW_GROWTH = 4
POSITIONS_SHOWN_MAX = 4
PREVIEW_CHARS_MAX = 160
SHOWN_BYTES_MAX = 256 * 1024
"""Bytes of a value that are shown in full view: more would make the browser slow."""
HEX_ROW_BYTES = 16
NULL = "null"


class StartFrom(Enum):
    """Where a read starts."""

    NEWEST = "newest"
    OLDEST = "oldest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(slots=True, frozen=True)
class ReadRequest:
    """What to read."""

    topic: str
    start: StartFrom = StartFrom.NEWEST
    at: int = 0
    """The offset, or the time in milliseconds since 1970."""
    partition: int | None = None
    """None for all partitions."""
    matches: Sequence[RecordFilter] = ()
    isolation: Isolation = Isolation.READ_COMMITTED


class ReadResult(NamedTuple):
    """The result of one read."""

    rows: list[FetchedRecord]
    scanned: int
    stopped: str
    """Why it stopped and where, for people."""
    has_more: bool
    seconds: float


class MessageReader(ABC):
    """A position in a topic, and the filters to apply from there."""

    def __init__(self, fetcher: Fetcher, request: ReadRequest, partitions: Sequence[TopicPartition]) -> None:
        self._fetcher = fetcher
        self._matches = request.matches
        self._partitions = partitions
        self._ready: deque[FetchedRecord] = deque()  # matching, not returned yet
        self._scanned = 0  # in this read

    def read(self, rows_max: int = ROWS_MAX, seconds_max: float = READ_SECONDS_MAX) -> ReadResult:
        """Return the next messages within about `seconds_max`; at least one fetch is made."""
        began, self._scanned = time.monotonic(), len(self._ready)
        rows: list[FetchedRecord] = []
        row_bytes, steps = 0, 0
        while True:
            while self._ready and len(rows) < rows_max and row_bytes < READ_BYTES_MAX:
                row = self._ready.popleft()
                row_bytes += len(row.key or b"") + len(row.value or b"")
                rows.append(row)
            seconds = time.monotonic() - began
            if len(rows) >= rows_max or row_bytes >= READ_BYTES_MAX:
                return ReadResult(
                    rows, self._processed, self._describe("There are more messages", seconds), True, seconds
                )
            if self._is_at_end():
                return ReadResult(rows, self._processed, self._describe(self._end_text, seconds), False, seconds)
            if steps and (seconds >= seconds_max or self._scanned >= READ_RECORDS_MAX):
                why = f"Stopped after {seconds:.1f} s; there may be more messages"
                return ReadResult(rows, self._processed, self._describe(why, seconds), True, seconds)
            self._fetch_some(max(0.0, seconds_max - seconds))
            steps += 1

    @abstractmethod
    def _fetch_some(self, seconds: float) -> None:
        """Fetch some records into `_ready`."""

    @abstractmethod
    def _is_at_end(self) -> bool:
        """Return whether there is nothing left to read."""

    @property
    @abstractmethod
    def _end_text(self) -> str:
        """Describe the end of this reader."""

    @abstractmethod
    def _positions(self) -> Mapping[TopicPartition, int]:
        """Return the position in each partition."""

    def _poll(self, seconds: float) -> list[FetchedRecord]:
        """Fetch the next records and return those that match."""
        records = self._fetcher.poll(min(POLL_MS, seconds * 1000), POLL_RECORDS_MAX)
        self._scanned += len(records)
        if not self._matches:
            return records
        return [record for record in records if all(matches(record) for matches in self._matches)]

    @property
    def _processed(self) -> int:
        """Number of records scanned by this read, without those left for the next one."""
        return self._scanned - len(self._ready)

    def _describe(self, why: str, seconds: float) -> str:
        positions = list(self._positions().items())
        shown = [f"partition {tp.partition} at offset {offset:,}" for tp, offset in positions[:POSITIONS_SHOWN_MAX]]
        others = len(positions) - len(shown)
        where = ", ".join(shown) + (f" and {others} more partitions" if others > 0 else "")
        return f"{why}. Scanned {self._processed:,} records in {seconds:.1f} s; stopped in {where}."


class ForwardReader(MessageReader):
    """Reads from offsets to the end of the topic at the time of each read."""

    _end_text = "End of the topic"

    def __init__(self, fetcher: Fetcher, request: ReadRequest, starts: Mapping[TopicPartition, int]) -> None:
        super().__init__(fetcher, request, list(starts))
        fetcher.assign(starts, check=False)
        self._ends: dict[TopicPartition, int] = {}

    def read(self, rows_max: int = ROWS_MAX, seconds_max: float = READ_SECONDS_MAX) -> ReadResult:
        self._ends = self._fetcher.end_offsets(self._partitions)
        return super().read(rows_max, seconds_max)

    def _fetch_some(self, seconds: float) -> None:
        records = self._poll(seconds)
        records.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
        self._ready.extend(records)

    def _is_at_end(self) -> bool:
        return not self._ready and all(self._fetcher.position(tp) >= end for tp, end in self._ends.items())

    def _positions(self) -> Mapping[TopicPartition, int]:
        positions = {tp: self._fetcher.position(tp) for tp in self._partitions}
        for record in self._ready:  # fetched, not shown yet
            tp = TopicPartition(record.topic, record.partition)
            positions[tp] = min(positions[tp], record.offset)
        return positions


class BackwardReader(MessageReader):
    """Reads towards the beginning, the newest first: window by window, each window to its end."""

    _end_text = "Beginning of the topic"

    def __init__(self, fetcher: Fetcher, request: ReadRequest, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(fetcher, request, partitions)
        self._starts = fetcher.beginning_offsets(partitions)
        self._lows = fetcher.end_offsets(partitions)  # everything above was read
        self._window_records = max(1, ROWS_MAX if not request.matches else POLL_RECORDS_MAX)
        self._window: list[FetchedRecord] = []
        self._is_open = False

    def _fetch_some(self, seconds: float) -> None:
        if not self._is_open:
            self._open_window()
        self._window += self._poll(seconds)
        if self._fetcher.is_finished():
            self._window.sort(key=lambda record: (record.timestamp, record.offset), reverse=True)
            self._ready.extend(self._window)
            self._window, self._is_open = [], False

    def _open_window(self) -> None:
        begin = {tp: max(self._starts[tp], low - self._window_records) for tp, low in self._lows.items()}
        remaining = [tp for tp, low in self._lows.items() if low > begin[tp]]
        ends = {tp: self._lows[tp] for tp in remaining}
        self._fetcher.assign({tp: begin[tp] for tp in remaining}, ends, check=False)
        self._lows = begin
        self._window_records = min(self._window_records * WINDOW_GROWTH, WINDOW_RECORDS_MAX)
        self._is_open = True

    def _is_at_end(self) -> bool:
        return not self._is_open and all(low <= self._starts[tp] for tp, low in self._lows.items())

    def _positions(self) -> Mapping[TopicPartition, int]:
        return self._lows


def open_reader(admin: AdminClient, request: ReadRequest, *, follow: bool = False) -> MessageReader:
    """Create the reader of a request; with `follow`, one that starts at the current end."""
    partitions = _partitions(admin, request)
    fetcher = Fetcher(
        admin.client,
        isolation="read_committed" if request.isolation is Isolation.READ_COMMITTED else "read_uncommitted",
        out_of_range="earliest",
        max_wait_ms=int(POLL_MS),
        max_bytes=FETCH_BYTES_MAX,
        partition_bytes_max=PARTITION_BYTES_MAX,
    )
    if follow:
        return ForwardReader(fetcher, request, fetcher.end_offsets(partitions))
    if request.start is StartFrom.NEWEST:
        return BackwardReader(fetcher, request, partitions)
    return ForwardReader(fetcher, request, _starts(fetcher, request, partitions))


def _partitions(admin: AdminClient, request: ReadRequest) -> list[TopicPartition]:
    described = admin.describe_topics([request.topic])[request.topic]
    count = len(described.partitions)
    if request.partition is None:
        return [TopicPartition(request.topic, info.partition) for info in described.partitions if info.leader >= 0]
    if not 0 <= request.partition < count:
        raise BrokerError(
            f"no partition {request.partition} in topic {request.topic!r}: it has {count} partitions, numbered from 0",
            code=Code.UNKNOWN_TOPIC_OR_PARTITION,
        )
    return [TopicPartition(request.topic, request.partition)]


def _starts(fetcher: Fetcher, request: ReadRequest, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the start offset of each partition, within what it contains."""
    firsts, ends = fetcher.beginning_offsets(partitions), fetcher.end_offsets(partitions)
    if request.start is StartFrom.OFFSET:
        return {tp: min(max(request.at, firsts[tp]), ends[tp]) for tp in partitions}
    if request.start is StartFrom.TIME:
        listed = fetcher.offsets_for_times(dict.fromkeys(partitions, request.at))
        return {tp: result.offset if result.offset >= 0 else ends[tp] for tp, result in listed.items()}
    return firsts


# -- formats of keys, values and headers ---------------------------------------------------------


class PayloadFormat(Enum):
    """Formats of bytes. AUTO is JSON or text where the bytes are that, otherwise hex."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


def preview(data: bytes | None, payload_format: PayloadFormat) -> str:
    """Format bytes in one line, shortened."""
    if data is None:
        return NULL
    cut = data[: PREVIEW_CHARS_MAX * 4]
    text = _text(cut, is_cut=len(cut) < len(data))
    if payload_format is PayloadFormat.HEX or (payload_format is not PayloadFormat.TEXT and text is None):
        shown = data[: PREVIEW_CHARS_MAX // 3].hex(" ")
        return shown + (" …" if len(data) * 3 > PREVIEW_CHARS_MAX else "")
    line = " ".join((text if text is not None else cut.decode(errors="replace")).split("\n"))
    is_short = len(line) <= PREVIEW_CHARS_MAX and len(cut) == len(data)
    return line if is_short else f"{line[:PREVIEW_CHARS_MAX]} …"


def full_text(data: bytes | None, payload_format: PayloadFormat) -> str:
    """Format bytes in lines, cut at SHOWN_BYTES_MAX."""
    if data is None:
        return NULL
    cut = data[:SHOWN_BYTES_MAX]
    left = len(data) - len(cut)
    more = f"\n… and {left:,} more bytes; print them with `headrace consume`" if left else ""
    text = _text(cut, is_cut=bool(left))
    if payload_format is PayloadFormat.HEX or (payload_format is PayloadFormat.AUTO and text is None):
        return hex_dump(cut) + more
    shown = text if text is not None else cut.decode(errors="replace")
    if payload_format is PayloadFormat.TEXT or left:
        return shown + more
    try:
        parsed = json.loads(cut)
    except ValueError as error:
        return f"(not JSON: {error})\n{shown}" if payload_format is PayloadFormat.JSON else shown
    if payload_format is PayloadFormat.AUTO and not isinstance(parsed, dict | list):
        return shown
    return json.dumps(parsed, indent=2, ensure_ascii=False)


def hex_dump(data: bytes) -> str:
    """Format bytes as offset, hex and ASCII."""
    lines = []
    for at in range(0, len(data), HEX_ROW_BYTES):
        row = data[at : at + HEX_ROW_BYTES]
        ascii_text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{HEX_ROW_BYTES * 3}} {ascii_text}")
    return "\n".join(lines)


def encode_payload(text: str, payload_format: PayloadFormat, name: str) -> bytes:
    """Convert typed text to bytes. JSON is checked, and sent as typed."""
    if payload_format is PayloadFormat.HEX:
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise ConfigError(f"invalid {name}: expected hex such as 0a ff 10: {error}") from error
    if payload_format is PayloadFormat.JSON:
        try:
            json.loads(text)
        except ValueError as error:
            raise ConfigError(f"invalid {name}: not JSON: {error}") from error
    return text.encode()


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """Decode printable UTF-8; None if it is not. With `is_cut`, the last character may be incomplete."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(data) - 4:
            return None
        text = data[: error.start].decode()
    return text if all(char.isprintable() or char in "\n\r\t" for char in text) else None
