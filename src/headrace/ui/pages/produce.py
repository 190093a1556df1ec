"""A form to send one record to a topic."""

from __future__ import annotations

from dataclasses import dataclass

from nicegui import ui

from headrace.client.admin import AdminClient
from headrace.errors import ConfigError
from headrace.producer.producer import Producer
from headrace.producer.records import RecordMetadata
from headrace.ui.actions import button, run_action
from headrace.ui.addresses import topic_address
from headrace.ui.decoding import Form, encoded
from headrace.ui.fields import Choice, TextArea, TextField, Tick, form, whole_number
from headrace.ui.frame import frame
from headrace.ui.pages.topic import sub_navigation
from headrace.ui.parts import Empty, Problem, Text, section
from headrace.ui.view import View

SEND_MS_MAX = 10_000
_NOT_OURS = ("transactional.id", "metric.reporters", "interceptor.classes")
"""Options for a program that sends much; here one record is sent, for which they make no sense."""
_FORMS = {Form.TEXT.value: "text", Form.JSON.value: "JSON", Form.HEX.value: "hex"}


@dataclass(slots=True, frozen=True)
class _Record:
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    partition: int | None


def build(view: View) -> None:
    @ui.page("/topics/{name}/produce")
    def produce(name: str) -> None:
        with frame(view, f"Topic {name}", "/topics"):
            sub_navigation(name, "Produce")
            with section("Send one record"):
                if view.read_only:
                    Empty("This view is read-only: start it without --read-only to send records.")
                else:
                    _Form(view, name)


class _Form:
    """The fields, and what they come to."""

    def __init__(self, view: View, topic: str) -> None:
        self._view = view
        self._topic = topic
        with form("Where it goes"):
            self._key = TextField("Key", wide=True, on_change=lambda: self._no_key.set(not self._key.value))
            self._key_form = Choice("The key is", _FORMS)
            self._value_form = Choice("The value is", _FORMS)
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
