"""Message browser and produce form of a topic.

    fields → ReadRequest → MessageReader, in a thread → messages kept for this browser → table, details

The last `ROWS_KEPT_MAX` messages are kept. The URL of the page says where to start, so it can be shared.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from nicegui import background_tasks, ui

from headrace.client.admin import AdminClient
from headrace.client.fetch_data import FetchedRecord
from headrace.client.offsets import Isolation
from headrace.client.text_formats import parse_header, parse_pattern, parse_time_ms, record_filters
from headrace.errors import ConfigError, HeadraceError
from headrace.producer.producer import Producer
from headrace.producer.records import RecordMetadata
from headrace.schema.types import RecordField
from headrace.ui import formatting
from headrace.ui.actions import GRACE_SECONDS, button, in_thread, run_action
from headrace.ui.elements import (
    Checkbox,
    EmptyNote,
    Problem,
    Select,
    Text,
    TextArea,
    TextField,
    form,
    parse_int,
    section,
)
from headrace.ui.frame import frame, topic_url
from headrace.ui.message_reader import (
    READ_SECONDS_MAX,
    MessageReader,
    PayloadFormat,
    ReadRequest,
    ReadResult,
    StartFrom,
    encode_payload,
    full_text,
    open_reader,
    preview,
)
from headrace.ui.pages.topic import topic_tabs
from headrace.ui.schemas import DecodedField
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View

log = logging.getLogger("headrace.ui")

Decoded = dict[RecordField, DecodedField]
"""Decoded key and value of a message, if they have a schema."""

ROWS_KEPT_MAX = 500
FOLLOW_SECONDS = 1.0
FOLLOW_READ_SECONDS = 0.2
CONNECT_MS_MAX = 10_000.0
SECONDS_MAX = CONNECT_MS_MAX / 1000 + READ_SECONDS_MAX + GRACE_SECONDS
COLUMNS = (
    Column("partition", "Partition", "number"),
    Column("offset", "Offset", "number"),
    Column("time", "Time", "fixed"),
    Column("key", "Key", "mono"),
    Column("value", "Value", "mono", wide=True),
    Column("headers", "Headers", "number"),
    Column("size", "Size", "number"),
    Column("show", "", "action"),
)
_STARTS = {
    StartFrom.NEWEST.value: "newest",
    StartFrom.OLDEST.value: "oldest",
    StartFrom.OFFSET.value: "offset",
    StartFrom.TIME.value: "timestamp",
}
_FORMATS = {
    PayloadFormat.AUTO.value: "auto",
    PayloadFormat.TEXT.value: "text",
    PayloadFormat.JSON.value: "JSON",
    PayloadFormat.HEX.value: "hex",
}
_FILTER_MODES = {"contains": "contains", "matches": "regex"}
_ISOLATIONS = {"read_committed": "read_committed", "read_uncommitted": "read_uncommitted"}

SEND_MS_MAX = 10_000
_IGNORED_OPTIONS = ("transactional.id", "metric.reporters", "interceptor.classes")
"""Options that are not applied to the producer of a single record."""
_SEND_FORMATS = {PayloadFormat.TEXT.value: "text", PayloadFormat.JSON.value: "JSON", PayloadFormat.HEX.value: "hex"}


def build(view: View) -> None:
    _build_produce_page(view)

    @ui.page("/topics/{name}/messages")
    def messages(name: str, begin: str = StartFrom.NEWEST.value, at: str = "", partition: str = "") -> None:
        with frame(view, f"Topic {name}", "/topics") as page:
            topic_tabs(name, "Messages")
            browser = _Browser(view, name)
            browser.fields.fill(begin, at, partition)
            page.live(browser.table.refresh)
            ui.timer(FOLLOW_SECONDS, browser.read_new)
            ui.context.client.on_delete(browser.close)
            # Read at once, while the browser still loads the page.
            background_tasks.create(browser.read(), name="first messages")


class _Fields:
    """The fields of a read request."""

    def __init__(self) -> None:
        with form("Read"):
            self.begin = Select("Start from", _STARTS, on_change=self._show_position)
            self.at = TextField("Offset", wide=True)
            self.time = TextField("Timestamp", placeholder="2026-11-16T12:30:00Z or milliseconds since 1970", wide=True)
            self.partition = TextField("Partition (empty for all)")
            self.format = Select("Format", _FORMATS)
            self.isolation = Select("Isolation level", _ISOLATIONS)
        with form("Filters"):
            self.mode = Select("Filter by", _FILTER_MODES)
            self.key = TextField("Key", wide=True)
            self.value = TextField("Value", wide=True)
            self.header = TextField("Header", placeholder="NAME or NAME=VALUE", wide=True)
        self.key.input.props("data-search")
        self._show_position()

    def fill(self, begin: str, at: str, partition: str) -> None:
        """Set the fields from the URL of the page."""
        if begin in _STARTS:
            self.begin.set(begin)
        (self.time if begin == StartFrom.TIME.value else self.at).set(at)
        self.partition.set(partition)
        self._show_position()

    def _show_position(self) -> None:
        self.at.show(self.begin.value == StartFrom.OFFSET.value)
        self.time.show(self.begin.value == StartFrom.TIME.value)

    def request(self, topic: str) -> ReadRequest:
        """Return the request; raise ConfigError for invalid input."""
        start = StartFrom(self.begin.value)
        number = self.partition.value.strip()
        is_regex = self.mode.value == "matches"
        key, value, header = self.key.value, self.value.value, self.header.value.strip()
        return ReadRequest(
            topic,
            start,
            self._position(start),
            parse_int(number, "partition") if number else None,
            record_filters(
                parse_pattern(key, is_regex=is_regex) if key else None,
                parse_pattern(value, is_regex=is_regex) if value else None,
                [parse_header(header)] if header else [],
            ),
            Isolation.of(self.isolation.value),
        )

    def _position(self, start: StartFrom) -> int:
        if start is StartFrom.OFFSET:
            return parse_int(self.at.value.strip(), "offset")
        return parse_time_ms(self.time.value.strip()) if start is StartFrom.TIME else 0


class _Browser:
    """The messages shown in one browser."""

    def __init__(self, view: View, topic: str) -> None:
        self._view = view
        self._topic = topic
        self._admin: AdminClient | None = None
        self._reader: MessageReader | None = None
        self._lock = asyncio.Lock()  # held during a read
        self._rows: deque[FetchedRecord] = deque(maxlen=ROWS_KEPT_MAX)
        self._decoded: dict[tuple[int, int], Decoded] = {}  # By partition and offset.
        self._is_following = False
        with section("Read messages"):
            self.fields = _Fields()
            with ui.element("div").classes("hr-buttons hr-above"):
                self._read_button = button("Read", self.read).classes("hr-primary")
                self._more_button = button("Load more", self.load_more).props("disabled")
                self._follow_button = button("Follow", self.toggle_follow).props('aria-pressed="false"')
            self._problem = Problem()
        with section("Messages"):
            self._status = Text("p", "Reading …")
            self._status.classes("hr-note").props('role="status"')
            self.table = ServerTable(
                "Messages",
                COLUMNS,
                self._page,
                row_key="id",
                empty="No messages. Change the filters above, or send a message on the “Produce” tab.",
            )
            self.table.on_action("show", self._show)

    # -- reading ---------------------------------------------------------------------------------

    async def read(self) -> None:
        """Read from the selected position."""
        self._set_following(False)
        await self._run(lambda request: self._open(request, follow=False).read(), clear=True)

    async def load_more(self) -> None:
        """Read the messages after those that are shown."""
        reader = self._reader
        if reader is not None and not self._is_following:
            await self._run(lambda _: reader.read())

    async def toggle_follow(self) -> None:
        """Start or stop showing new messages as they arrive."""
        if self._is_following:
            self._set_following(False)
            return
        self._set_following(True)
        await self._run(lambda request: self._open(request, follow=True).read(seconds_max=0.0), clear=True)

    async def read_new(self) -> None:
        """Read new messages while following."""
        reader = self._reader
        if self._is_following and reader is not None and not self._lock.locked():
            await self._run(lambda _: reader.read(ROWS_KEPT_MAX, FOLLOW_READ_SECONDS))

    def _open(self, request: ReadRequest, *, follow: bool) -> MessageReader:
        """Open a reader. Runs in a thread; the connection is kept while the page is open."""
        if self._admin is None:
            self._admin = self._view.cluster.connect(CONNECT_MS_MAX)
        self._reader = open_reader(self._admin, request, follow=follow)
        return self._reader

    async def _run(self, read: Callable[[ReadRequest], ReadResult], *, clear: bool = False) -> None:
        if self._lock.locked():
            return
        async with self._lock:
            try:
                request = self.fields.request(self._topic)
                self._read_button.props("disabled")
                result, decoded = await in_thread(SECONDS_MAX, lambda: self._decode(read(request)))
            except HeadraceError as error:
                self._problem.set(str(error))
                self._status.show("Read failed.")
                return
            except Exception as error:
                log.exception("internal error while reading messages of %s", self._topic)
                self._problem.set(f"{type(error).__name__}: {error}")
                return
            finally:
                self._read_button.props(remove="disabled")
            self._problem.set(None)
            self._keep_decoded(result, decoded)
            self._apply(result, clear=clear)

    def _decode(self, result: ReadResult) -> tuple[ReadResult, list[Decoded]]:
        """Decode the messages that have a schema, if there is a registry. Runs in a thread."""
        return result, [] if self._view.schemas is None else self._view.schemas.decode(result.rows)

    def _keep_decoded(self, result: ReadResult, decoded: list[Decoded]) -> None:
        kept = {(record.partition, record.offset) for record in self._rows}
        self._decoded = {position: each for position, each in self._decoded.items() if position in kept}
        for record, each in zip(result.rows, decoded, strict=False):
            if each:
                self._decoded[record.partition, record.offset] = each

    def _shown(self, record: FetchedRecord, field: RecordField) -> bytes | None:
        """Return the key or value to show: decoded, unless the bytes are to be shown."""
        return shown_bytes(record, field, self._decoded.get((record.partition, record.offset), {}), self._format)

    def _apply(self, result: ReadResult, *, clear: bool) -> None:
        if clear:
            self._rows.clear()
            self.table.query.first = 0
        if self._is_following:
            self._rows.extendleft(result.rows)  # the newest at the top
            self._status.show(f"Following: {len(self._rows):,} messages, the newest first.")
        else:
            self._rows.extend(result.rows)
            self._status.show(f"{result.stopped} {formatting.plural(len(result.rows), 'message')} added.")
        if result.has_more and not self._is_following:
            self._more_button.props(remove="disabled")
        else:
            self._more_button.props("disabled")
        self.table.refresh()

    def _set_following(self, following: bool) -> None:
        self._is_following = following
        self._follow_button.props(f'aria-pressed="{str(following).lower()}"')

    def close(self) -> None:
        """Release the connection when the page is closed."""
        self._set_following(False)
        admin, self._admin = self._admin, None
        if admin is not None:
            background_tasks.create(in_thread(SECONDS_MAX, admin.close), name="close message browser")

    # -- table -----------------------------------------------------------------------------------

    @property
    def _format(self) -> PayloadFormat:
        return PayloadFormat(self.fields.format.value)

    def _page(self, query: Query) -> Rows:
        return paged(query, self._rows, self._row)

    def _row(self, record: FetchedRecord) -> Row:
        return {
            "id": f"{record.partition}-{record.offset}",
            "partition": str(record.partition),
            "offset": formatting.count(record.offset),
            "time": formatting.moment_ms(record.timestamp),
            "key": preview(self._shown(record, "key"), self._format),
            "value": preview(self._shown(record, "value"), self._format),
            "headers": formatting.count(len(record.headers)),
            "size": formatting.size(len(record.key or b"") + len(record.value or b"")),
            "show": "Show",
        }

    def _show(self, row: Row) -> None:
        for record in self._rows:
            if f"{record.partition}-{record.offset}" == row["id"]:
                decoded = self._decoded.get((record.partition, record.offset), {})
                _show_details(record, decoded, self._format)
                return


def shown_bytes(
    record: FetchedRecord, field: RecordField, decoded: Decoded, payload_format: PayloadFormat
) -> bytes | None:
    """Return a key or value as JSON if it was decoded and the format is not that of bytes, else as it is."""
    each = decoded.get(field)
    if each is None or each.text is None or payload_format not in (PayloadFormat.AUTO, PayloadFormat.JSON):
        return record.key if field == "key" else record.value
    return each.text.encode()


def _show_details(record: FetchedRecord, decoded: Decoded, payload_format: PayloadFormat) -> None:
    """Open a dialog with the whole message."""
    title = f"Partition {record.partition}, offset {record.offset:,}, {formatting.moment_ms(record.timestamp)}"
    with ui.dialog(value=True) as dialog, ui.element("div").classes("hr-dialog hr-dialog-wide"):
        dialog.props(f'aria-label="{title}"')
        Text("h2", title)
        choice = Select("Format", _FORMATS, payload_format.value, on_change=lambda: show())
        Text("h3", "Key").classes("hr-heading")
        _schema_note(decoded, "key")
        key = Text("pre").classes("hr-pre")
        Text("h3", f"Value ({formatting.size(len(record.value or b''))})").classes("hr-heading")
        _schema_note(decoded, "value")
        value = Text("pre").classes("hr-pre")
        Text("h3", f"Headers ({len(record.headers)})").classes("hr-heading")
        headers = Text("pre").classes("hr-pre")
        with ui.element("div").classes("hr-buttons"):
            button("Close", dialog.close)

    def show() -> None:
        selected = PayloadFormat(choice.value)
        key.set_text(full_text(shown_bytes(record, "key", decoded, selected), selected))
        value.set_text(full_text(shown_bytes(record, "value", decoded, selected), selected))
        lines = [f"{name} = {preview(data, selected)}" for name, data in record.headers]
        headers.set_text("\n".join(lines) or "none")

    dialog.on("hide", lambda _: dialog.delete())
    show()


def _schema_note(decoded: Decoded, field: RecordField) -> None:
    """Show the schema of a key or value, or why it could not be decoded."""
    each = decoded.get(field)
    if each is not None:
        note = each.note if each.text is not None else f"Not decoded: {each.note}"
        Text("p", note).classes("hr-note")


# -- produce page --------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Record:
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    partition: int | None


def _build_produce_page(view: View) -> None:
    @ui.page("/topics/{name}/produce")
    def produce(name: str) -> None:
        with frame(view, f"Topic {name}", "/topics"):
            topic_tabs(name, "Produce")
            with section("Produce a record"):
                if view.read_only:
                    EmptyNote("This view is read-only. Start it without --read-only to send records.")
                else:
                    _ProduceForm(view, name)


class _ProduceForm:
    """The form that sends a record."""

    def __init__(self, view: View, topic: str) -> None:
        self._view = view
        self._topic = topic
        with form("Key and partition"):
            self._key = TextField("Key", wide=True, on_change=lambda: self._no_key.set(not self._key.value))
            self._key_form = Select("Key format", _SEND_FORMATS)
            self._value_form = Select("Value format", _SEND_FORMATS)
            self._partition = TextField("Partition (empty for the partitioner)")
        self._no_key = Checkbox("Null key", True)
        with form("Record value"):
            self._value = TextArea("Value", rows=6)
        self._tombstone = Checkbox("Null value (tombstone: deletes the key in a compacted topic)")
        with form("Metadata"):
            self._headers = TextArea("Headers, one NAME=VALUE per line", rows=2)
        self._problem = Problem()
        with ui.element("div").classes("hr-buttons hr-above"):
            button("Send", self._send).classes("hr-primary")
        self._status = Text("p")
        self._status.classes("hr-note").props('role="status"')
        ui.link("Show the newest messages", f"{topic_url(topic)}/messages")

    def _record(self) -> _Record:
        number = self._partition.value.strip()
        headers = []
        for line in self._headers.value.splitlines():
            name, equals, value = line.partition("=")
            if line.strip() and not (name.strip() and equals):
                raise ConfigError(f"invalid header: expected NAME=VALUE, got {line!r}")
            if line.strip():
                headers.append((name.strip(), value.encode()))
        return _Record(
            None if self._no_key.value else encode_payload(self._key.value, PayloadFormat(self._key_form.value), "key"),
            None
            if self._tombstone.value
            else encode_payload(self._value.value, PayloadFormat(self._value_form.value), "value"),
            headers,
            parse_int(number, "partition") if number else None,
        )

    async def _send(self) -> None:
        def send(_: AdminClient) -> RecordMetadata:
            return self._produce(self._record())

        metadata = await run_action(self._view, self._problem, send, name="Send")
        if metadata is not None:
            self._status.show(f"Sent to partition {metadata.partition} at offset {metadata.offset:,}.")

    def _produce(self, record: _Record) -> RecordMetadata:
        """Send a record with acks=all and wait for its response."""
        options = {name: value for name, value in self._view.options.producer.items() if name not in _IGNORED_OPTIONS}
        bounds = {
            "acks": "all",
            "linger.ms": "0",
            "max.block.ms": str(SEND_MS_MAX),
            "delivery.timeout.ms": str(SEND_MS_MAX),
            "request.timeout.ms": str(SEND_MS_MAX),
        }
        with Producer({**options, **bounds}) as producer:
            future = producer.send(
                self._topic, record.value, key=record.key, headers=record.headers, partition=record.partition
            )
            metadata: RecordMetadata = future.result(2 * SEND_MS_MAX / 1000)
            return metadata
