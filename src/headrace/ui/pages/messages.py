"""Messages of a topic: from an offset, a time or the end; filtered; as text, JSON or hex; following what comes.

    fields → Wanted → Reading (browser.py, in a thread) → rows kept for this browser → table, detail

What was read last is kept, at most `ROWS_KEPT_MAX` of it; the address of the page says what is shown, so it can be
passed on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from nicegui import background_tasks, ui

from headrace.client.admin import AdminClient
from headrace.client.facts.filters import filters_of, header_of, pattern_of
from headrace.client.facts.times import parse_time_ms
from headrace.client.fetch_data import FetchedRecord
from headrace.client.offsets import Isolation
from headrace.errors import ConfigError, HeadraceError
from headrace.producer.producer import Producer
from headrace.producer.records import RecordMetadata
from headrace.ui import formatting
from headrace.ui.actions import GRACE_SECONDS, button, in_thread, run_action
from headrace.ui.elements import Choice, Empty, Problem, Text, TextArea, TextField, Tick, form, section, whole_number
from headrace.ui.frame import frame, topic_address
from headrace.ui.message_reader import (
    READ_SECONDS_MAX,
    Begin,
    Form,
    Found,
    Reading,
    Wanted,
    encoded,
    open_reading,
    preview,
    whole,
)
from headrace.ui.pages.topic import sub_navigation
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View

log = logging.getLogger("headrace.ui")

ROWS_KEPT_MAX = 500
FOLLOW_SECONDS = 1.0
FOLLOW_READ_SECONDS = 0.2
CONNECT_MS_MAX = 10_000.0
SECONDS_MAX = CONNECT_MS_MAX / 1000 + READ_SECONDS_MAX + GRACE_SECONDS
COLUMNS = (
    Column("place", "Partition", "number"),
    Column("offset", "Offset", "number"),
    Column("time", "Time", "fixed"),
    Column("key", "Key", "mono"),
    Column("value", "Value", "mono", wide=True),
    Column("headers", "Headers", "number"),
    Column("size", "Size", "number"),
    Column("show", "", "action"),
)
_BEGINS = {
    Begin.NEWEST.value: "the newest",
    Begin.OLDEST.value: "the oldest",
    Begin.OFFSET.value: "an offset",
    Begin.TIME.value: "a time",
}
_FORMS = {Form.AUTO.value: "what fits", Form.TEXT.value: "text", Form.JSON.value: "JSON", Form.HEX.value: "hex"}
_WAYS = {"contains": "contain", "matches": "match a regex"}
_ISOLATIONS = {"read_committed": "committed", "read_uncommitted": "all, committed or not"}


def build(view: View) -> None:
    _build_produce_page(view)

    @ui.page("/topics/{name}/messages")
    def messages(name: str, begin: str = Begin.NEWEST.value, at: str = "", partition: str = "") -> None:
        with frame(view, f"Topic {name}", "/topics") as page:
            sub_navigation(name, "Messages")
            browser = _Browser(view, name)
            browser.fields.fill(begin, at, partition)
            page.live(browser.table.refresh)
            ui.timer(FOLLOW_SECONDS, browser.follow_on)
            ui.context.client.on_delete(browser.close)
            # At once, while the browser still loads what it needs to show it.
            background_tasks.create(browser.read(), name="first messages")


class _Fields:
    """What can be asked for."""

    def __init__(self) -> None:
        with form("What to read"):
            self.begin = Choice("From", _BEGINS, on_change=self._show_place)
            self.at = TextField("Offset", wide=True)
            self.time = TextField("Time", placeholder="2026-11-16T12:30:00Z, or milliseconds since 1970", wide=True)
            self.partition = TextField("Partition (empty: all)")
            self.form = Choice("Show as", _FORMS)
            self.isolation = Choice("Records", _ISOLATIONS)
        with form("Filters"):
            self.way = Choice("Filters that", _WAYS)
            self.key = TextField("Key", wide=True)
            self.value = TextField("Value", wide=True)
            self.header = TextField("Header", placeholder="NAME or NAME=VALUE", wide=True)
        self.key.input.props("data-search")
        self._show_place()

    def fill(self, begin: str, at: str, partition: str) -> None:
        """Take over what the address of the page says."""
        if begin in _BEGINS:
            self.begin.set(begin)
        (self.time if begin == Begin.TIME.value else self.at).set(at)
        self.partition.set(partition)
        self._show_place()

    def _show_place(self) -> None:
        self.at.show(self.begin.value == Begin.OFFSET.value)
        self.time.show(self.begin.value == Begin.TIME.value)

    def wanted(self, topic: str) -> Wanted:
        """What they come to; what makes no sense is a ConfigError."""
        begin = Begin(self.begin.value)
        number = self.partition.value.strip()
        is_regex = self.way.value == "matches"
        key, value, header = self.key.value, self.value.value, self.header.value.strip()
        return Wanted(
            topic,
            begin,
            self._place(begin),
            whole_number(number, "partition") if number else None,
            filters_of(
                pattern_of(key, is_regex=is_regex) if key else None,
                pattern_of(value, is_regex=is_regex) if value else None,
                [header_of(header)] if header else [],
            ),
            Isolation.of(self.isolation.value),
        )

    def _place(self, begin: Begin) -> int:
        if begin is Begin.OFFSET:
            return whole_number(self.at.value.strip(), "offset")
        return parse_time_ms(self.time.value.strip()) if begin is Begin.TIME else 0


class _Browser:
    """The messages that one browser looks at."""

    def __init__(self, view: View, topic: str) -> None:
        self._view = view
        self._topic = topic
        self._admin: AdminClient | None = None
        self._reading: Reading | None = None
        self._turn = asyncio.Lock()  # one thing at a time
        self._rows: deque[FetchedRecord] = deque(maxlen=ROWS_KEPT_MAX)
        self._is_following = False
        with section("What to read"):
            self.fields = _Fields()
            with ui.element("div").classes("hr-buttons hr-above"):
                self._read_button = button("Read", self.read).classes("hr-primary")
                self._on_button = button("Go on", self.go_on).props("disabled")
                self._follow_button = button("Follow", self.toggle_follow).props('aria-pressed="false"')
            self._problem = Problem()
        with section("Messages"):
            self._told = Text("p", "Reading …")
            self._told.classes("hr-note").props('role="status"')
            self.table = ServerTable(
                "Messages",
                COLUMNS,
                self._page,
                row_key="id",
                empty="No message was found here. Change what to read above, or send one on the page “Produce”.",
            )
            self.table.on_action("show", self._show)

    # -- reading ---------------------------------------------------------------------------------

    async def read(self) -> None:
        """Begin anew."""
        self._set_following(False)
        await self._do(lambda wanted: self._begin(wanted, follow=False).more(), clear=True)

    async def go_on(self) -> None:
        """The next ones, after those that are shown."""
        reading = self._reading
        if reading is not None and not self._is_following:
            await self._do(lambda _: reading.more())

    async def toggle_follow(self) -> None:
        """Show what comes from now on, or stop that."""
        if self._is_following:
            self._set_following(False)
            return
        self._set_following(True)
        await self._do(lambda wanted: self._begin(wanted, follow=True).more(seconds_max=0.0), clear=True)

    async def follow_on(self) -> None:
        reading = self._reading
        if self._is_following and reading is not None and not self._turn.locked():
            await self._do(lambda _: reading.more(ROWS_KEPT_MAX, FOLLOW_READ_SECONDS))

    def _begin(self, wanted: Wanted, *, follow: bool) -> Reading:
        """In a thread. Connections are made once, and kept while the page is open."""
        if self._admin is None:
            self._admin = self._view.cluster.connect(CONNECT_MS_MAX)
        self._reading = open_reading(self._admin, wanted, follow=follow)
        return self._reading

    async def _do(self, read: Callable[[Wanted], Found], *, clear: bool = False) -> None:
        if self._turn.locked():
            return
        async with self._turn:
            try:
                wanted = self.fields.wanted(self._topic)
                self._read_button.props("disabled")
                found = await in_thread(SECONDS_MAX, lambda: read(wanted))
            except HeadraceError as error:
                self._problem.tell(str(error))
                self._told.show("Nothing was read." if clear else "No more was read.")
                return
            except Exception as error:
                log.exception("messages of %s could not be read", self._topic)
                self._problem.tell(f"{type(error).__name__}: {error}")
                return
            finally:
                self._read_button.props(remove="disabled")
            self._problem.tell(None)
            self._take(found, clear=clear)

    def _take(self, found: Found, *, clear: bool) -> None:
        if clear:
            self._rows.clear()
            self.table.query.first = 0
        if self._is_following:
            self._rows.extendleft(found.rows)  # the newest at the top
            self._told.show(f"Following: {len(self._rows):,} messages so far, the newest first.")
        else:
            self._rows.extend(found.rows)
            matched = f"{len(found.rows):,} of them shown" if found.rows or found.read else "nothing to show"
            self._told.show(f"{found.stopped} {matched[:1].upper()}{matched[1:]}.")
        if found.can_go_on and not self._is_following:
            self._on_button.props(remove="disabled")
        else:
            self._on_button.props("disabled")
        self.table.refresh()

    def _set_following(self, following: bool) -> None:
        self._is_following = following
        self._follow_button.props(f'aria-pressed="{str(following).lower()}"')

    def close(self) -> None:
        """The page is gone."""
        self._set_following(False)
        admin, self._admin = self._admin, None
        if admin is not None:
            background_tasks.create(in_thread(SECONDS_MAX, admin.close), name="close a browser of messages")

    # -- showing ---------------------------------------------------------------------------------

    @property
    def _form(self) -> Form:
        return Form(self.fields.form.value)

    def _page(self, query: Query) -> Rows:
        return paged(query, self._rows, self._row)

    def _row(self, record: FetchedRecord) -> Row:
        return {
            "id": f"{record.partition}-{record.offset}",
            "place": str(record.partition),
            "offset": formatting.count(record.offset),
            "time": formatting.moment_ms(record.timestamp),
            "key": preview(record.key, self._form),
            "value": preview(record.value, self._form),
            "headers": formatting.count(len(record.headers)),
            "size": formatting.size(len(record.key or b"") + len(record.value or b"")),
            "show": "Show",
        }

    def _show(self, row: Row) -> None:
        for record in self._rows:
            if f"{record.partition}-{record.offset}" == row["id"]:
                _detail(record, self._form)
                return


def _detail(record: FetchedRecord, shown_as: Form) -> None:
    """All of a message."""
    title = f"Partition {record.partition}, offset {record.offset:,}, {formatting.moment_ms(record.timestamp)}"
    with ui.dialog(value=True) as dialog, ui.element("div").classes("hr-dialog hr-dialog-wide"):
        dialog.props(f'aria-label="{title}"')
        Text("h2", title)
        chosen = Choice("Show as", _FORMS, shown_as.value, on_change=lambda: show())
        Text("h3", "Key").classes("hr-heading")
        key = Text("pre").classes("hr-pre")
        Text("h3", f"Value ({formatting.size(len(record.value or b''))})").classes("hr-heading")
        value = Text("pre").classes("hr-pre")
        Text("h3", f"Headers ({len(record.headers)})").classes("hr-heading")
        headers = Text("pre").classes("hr-pre")
        with ui.element("div").classes("hr-buttons"):
            button("Close", dialog.close)

    def show() -> None:
        wanted = Form(chosen.value)
        key.set_text(whole(record.key, wanted))
        value.set_text(whole(record.value, wanted))
        lines = [f"{name} = {preview(data, wanted)}" for name, data in record.headers]
        headers.set_text("\n".join(lines) or "none")

    dialog.on("hide", lambda _: dialog.delete())
    show()


SEND_MS_MAX = 10_000
_NOT_OURS = ("transactional.id", "metric.reporters", "interceptor.classes")
"""Options for a program that sends much; here one record is sent, for which they make no sense."""
_SEND_FORMATS = {Form.TEXT.value: "text", Form.JSON.value: "JSON", Form.HEX.value: "hex"}


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
            sub_navigation(name, "Produce")
            with section("Send one record"):
                if view.read_only:
                    Empty("This view is read-only: start it without --read-only to send records.")
                else:
                    _ProduceForm(view, name)


class _ProduceForm:
    """The fields, and what they come to."""

    def __init__(self, view: View, topic: str) -> None:
        self._view = view
        self._topic = topic
        with form("Where it goes"):
            self._key = TextField("Key", wide=True, on_change=lambda: self._no_key.set(not self._key.value))
            self._key_form = Choice("The key is", _SEND_FORMATS)
            self._value_form = Choice("The value is", _SEND_FORMATS)
            self._partition = TextField("Partition (empty: by the key)")
        self._no_key = Tick("No key (null)", True)
        with form("What is in it"):
            self._value = TextArea("Value", rows=6)
        self._tombstone = Tick("No value (null): a tombstone, which deletes the key of a compacted topic")
        with form("What goes with it"):
            self._headers = TextArea("Headers, a line each: NAME=VALUE", rows=2)
        self._problem = Problem()
        with ui.element("div").classes("hr-buttons hr-above"):
            button("Send", self._send).classes("hr-primary")
        self._told = Text("p")
        self._told.classes("hr-note").props('role="status"')
        ui.link("Look at the newest messages", f"{topic_address(topic)}/messages")

    def _record(self) -> _Record:
        number = self._partition.value.strip()
        headers = []
        for line in self._headers.value.splitlines():
            name, equals, value = line.partition("=")
            if line.strip() and not (name.strip() and equals):
                raise ConfigError(f"a header is written as NAME=VALUE, not {line!r}")
            if line.strip():
                headers.append((name.strip(), value.encode()))
        return _Record(
            None if self._no_key.value else encoded(self._key.value, Form(self._key_form.value), "key"),
            None if self._tombstone.value else encoded(self._value.value, Form(self._value_form.value), "value"),
            headers,
            whole_number(number, "partition") if number else None,
        )

    async def _send(self) -> None:
        def do(_: AdminClient) -> RecordMetadata:
            return self._sent(self._record())

        sent = await run_action(self._view, self._problem, do, what="Send")
        if sent is not None:
            self._told.show(f"Sent: it is in partition {sent.partition} at offset {sent.offset:,}.")

    def _sent(self, record: _Record) -> RecordMetadata:
        """Send it, and wait until it is stored on all replicas in sync."""
        given = {name: value for name, value in self._view.options.producer.items() if name not in _NOT_OURS}
        bounds = {
            "acks": "all",
            "linger.ms": "0",
            "max.block.ms": str(SEND_MS_MAX),
            "delivery.timeout.ms": str(SEND_MS_MAX),
            "request.timeout.ms": str(SEND_MS_MAX),
        }
        with Producer({**given, **bounds}) as producer:
            future = producer.send(
                self._topic, record.value, key=record.key, headers=record.headers, partition=record.partition
            )
            sent: RecordMetadata = future.result(2 * SEND_MS_MAX / 1000)
            return sent
