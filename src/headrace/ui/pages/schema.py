"""Schema page: the schemas of a topic's keys and values in the registry, with their versions."""

from __future__ import annotations

import json
import logging

from nicegui import background_tasks, ui

from headrace.errors import HeadraceError
from headrace.schema.types import RecordField, RegisteredSchema, SchemaFormat
from headrace.ui.actions import in_thread
from headrace.ui.elements import EmptyNote, Problem, Select, Text, section
from headrace.ui.frame import frame
from headrace.ui.pages.topic import topic_tabs
from headrace.ui.schemas import SchemaViewer
from headrace.ui.view import View

log = logging.getLogger("headrace.ui")

READ_SECONDS_MAX = 30.0


def build(view: View) -> None:
    @ui.page("/topics/{name}/schema")
    def schema(name: str) -> None:
        with frame(view, f"Topic {name}", "/topics"):
            topic_tabs(name, "Schema")
            if view.schemas is None:
                EmptyNote("No schema registry is configured. Start the view with --schema-registry URL.")
                return
            fields: tuple[RecordField, ...] = ("value", "key")
            for field in fields:
                with section(f"Schema of {field}s"):
                    panel = _SubjectPanel(view.schemas, name, field)
                background_tasks.create(panel.load(), name=f"schema of {field}s")


class _SubjectPanel:
    """The versions of one subject, and the text of the selected one."""

    def __init__(self, schemas: SchemaViewer, topic: str, field: RecordField) -> None:
        self._schemas = schemas
        self._topic = topic
        self._field: RecordField = field
        self._problem = Problem()
        self._status = Text("p", "Reading …")
        self._status.classes("hr-note").props('role="status"')
        self._body = ui.element("div")

    async def load(self) -> None:
        """Read the versions from the registry, and show the newest."""
        try:
            versions = await in_thread(READ_SECONDS_MAX, lambda: self._schemas.versions(self._topic, self._field))
        except HeadraceError as error:
            self._problem.set(str(error))
            self._status.show("The schema registry could not be read.")
            return
        except Exception as error:
            log.exception("internal error while reading schemas of %s", self._topic)
            self._problem.set(f"{type(error).__name__}: {error}")
            return
        if not versions:
            self._status.show(f"The registry has no subject {self._topic}-{self._field}.")
            return
        count = "1 version" if len(versions) == 1 else f"{len(versions)} versions"
        self._status.show(f"Subject {self._topic}-{self._field}, {count}")
        by_number = {str(version.version): version for version in versions}
        with self._body:
            choice = Select(
                f"Version of the schema of {self._field}s",
                {number: _label(version) for number, version in by_number.items()},
                on_change=lambda: text.set_text(_formatted(by_number[choice.value])),
            )
            text = Text("pre", _formatted(versions[0]))
            text.classes("hr-pre")


def _label(version: RegisteredSchema) -> str:
    return f"{version.version}: id {version.id}, {version.schema.format.value.capitalize()}"


def _formatted(version: RegisteredSchema) -> str:
    """Return the text of a schema, JSON with line breaks."""
    if version.schema.format is SchemaFormat.PROTOBUF:
        return version.schema.text
    try:
        return json.dumps(json.loads(version.schema.text), indent=2, ensure_ascii=False)
    except ValueError:
        return version.schema.text
