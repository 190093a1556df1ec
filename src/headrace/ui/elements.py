"""Elements of pages: text, sections, tiles, error messages and form fields.

with form("Reset offsets"):
    topic = TextField("Topic", placeholder="orders")
    where = Select("Set to", {"earliest": "earliest offset", "latest": "latest offset"}, on_change=…)
topic.value, where.value

Form fields are native inputs inside a label, so that keyboards and screen readers know them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape

from nicegui import events, ui
from nicegui.elements.mixins.text_element import TextElement

from headrace.errors import ConfigError
from headrace.ui.formatting import UNKNOWN

CHARS_MAX = 10_000
AREA_CHARS_MAX = 200_000


class Text(TextElement):
    """Plain text in an element of any kind."""

    def __init__(self, tag: str, text: str = "") -> None:
        super().__init__(tag=tag, text=text)

    def show(self, text: str) -> None:
        """Set the text; an unchanged text is not sent to the browser."""
        if text != self.text:
            self.set_text(text)


class Problem(Text):
    """An error message; hidden while there is none."""

    def __init__(self) -> None:
        super().__init__("div")
        self.classes("hr-problem").props('role="alert"')
        self.set_visibility(False)

    def set(self, text: str | None) -> None:
        """Show an error, or hide the message with None."""
        if text:
            self.show(f"⚠ {text}")
        if self.visible != bool(text):
            self.set_visibility(bool(text))


@contextmanager
def section(title: str) -> Iterator[ui.element]:
    """A part of a page with a heading."""
    with ui.element("section").classes("hr-section") as element:
        Text("h2", title).classes("hr-heading")
        yield element


class Tile:
    """A figure with its name and a note."""

    def __init__(self, name: str, note: str = "") -> None:
        with ui.element("div").classes("hr-tile").props(f'data-tile="{name}"'):
            Text("div", name).classes("hr-tile-name")
            self._figure = Text("div", UNKNOWN).classes("hr-tile-figure")
            self._note = Text("div", note).classes("hr-tile-note")

    def show(self, figure: str, note: str | None = None) -> None:
        assert isinstance(self._figure, Text)
        self._figure.show(figure)
        if note is not None:
            assert isinstance(self._note, Text)
            self._note.show(note)


@contextmanager
def tiles(classes: str = "") -> Iterator[None]:
    """A row of tiles."""
    with ui.element("div").classes(f"hr-tiles {classes}"):
        yield


class DefinitionList:
    """Names and values, one pair per line."""

    def __init__(self, names: Sequence[str]) -> None:
        self._values: dict[str, Text] = {}
        with ui.element("dl").classes("hr-facts"):
            for name in names:
                Text("dt", name)
                self._values[name] = Text("dd", UNKNOWN)

    def show(self, name: str, value: str) -> None:
        self._values[name].show(value)


class EmptyNote(Text):
    """A note in place of content that does not exist yet; says what to do."""

    def __init__(self, text: str) -> None:
        super().__init__("p", text)
        self.classes("hr-empty")


# -- form fields ---------------------------------------------------------------------------------


class Field:
    """A form field. Values from the browser are text and not trusted."""

    chars_max = CHARS_MAX

    def __init__(self, label: str, tag: str, value: str, on_change: Callable[[], object] | None, wide: bool) -> None:
        self.value = value
        self._on_change = on_change
        self.box = ui.element("label").classes("hr-field hr-wide" if wide else "hr-field")
        with self.box:
            Text("span", label)
            # Without the explicit label, the options of a select would become part of its accessible name.
            self.input = ui.element(tag).props(f'aria-label="{escape(label)}"')
        self.input.on("input", self._on_input, js_handler="(event) => emit(event.target.value)")

    def show(self, is_shown: bool) -> None:
        """Show or hide the field."""
        self.box.set_visibility(is_shown)

    def _on_input(self, event: events.GenericEventArguments) -> None:
        self.value = self._checked(str(event.args)[: self.chars_max])
        if self._on_change is not None:
            self._on_change()

    def _checked(self, text: str) -> str:
        return text


class TextField(Field):
    """A line of text."""

    def __init__(
        self,
        label: str,
        value: str = "",
        *,
        placeholder: str = "",
        kind: str = "text",
        wide: bool = False,
        on_change: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(label, "input", value, on_change, wide)
        self.input.props(f'type="{kind}" placeholder="{escape(placeholder)}" autocomplete="off" spellcheck="false"')
        self.set(value)

    def set(self, value: str) -> None:
        """Set the value."""
        self.value = value
        _put(self.input, "^value", "value", value)


class TextArea(Field):
    """Several lines of text."""

    chars_max = AREA_CHARS_MAX

    def __init__(self, label: str, *, rows: int = 3) -> None:
        super().__init__(label, "textarea", "", None, True)
        self.input.props(f'rows="{rows}" maxlength="{AREA_CHARS_MAX}" spellcheck="false"')


class Checkbox:
    """A check box with a label."""

    def __init__(self, label: str, value: bool = False, *, on_change: Callable[[], object] | None = None) -> None:
        self.value = value
        self._on_change = on_change
        with ui.element("label").classes("hr-tick"):
            self._input = ui.element("input").props('type="checkbox"')
            Text("span", label)
        self._input.on("change", self._on_toggle, js_handler="(event) => emit(event.target.checked)")
        self.set(value)

    def set(self, value: bool) -> None:
        """Check or clear the box."""
        self.value = value
        _put(self._input, "checked", "checked", value)

    def _on_toggle(self, event: events.GenericEventArguments) -> None:
        self.value = self._input.props["checked"] = event.args is True
        if self._on_change is not None:
            self._on_change()


class Select(Field):
    """A drop-down list: values and their labels."""

    def __init__(
        self,
        label: str,
        options: Mapping[str, str],
        value: str | None = None,
        *,
        on_change: Callable[[], object] | None = None,
    ) -> None:
        self._options = dict(options)
        super().__init__(label, "select", next(iter(options)) if value is None else value, on_change, False)
        with self.input:
            self._shown = {name: Text("option", text) for name, text in options.items()}
        for name, option in self._shown.items():
            option.props["value"] = name
        self.set(self.value)

    def set(self, value: str) -> None:
        """Select a value."""
        self.value = value
        for name, option in self._shown.items():
            _put(option, "selected", "selected", name == value)

    def _checked(self, text: str) -> str:
        return text if text in self._options else self.value


@contextmanager
def form(label: str) -> Iterator[ui.element]:
    """A group of fields side by side."""
    with ui.element("div").classes("hr-form").props(f'role="group" aria-label="{escape(label)}"') as element:
        yield element


def _put(element: ui.element, prop: str, name: str, value: str | bool) -> None:
    """Set a property of an input in the browser.

    The page is built with an attribute, which browsers treat as the initial value. As a property, Vue would set it on
    every update of the page and overwrite what the user is typing.
    """
    element.props[prop] = value
    element.update()
    if element.client.has_socket_connection:
        element.client.run_javascript(f"getHtmlElement({element.id}).{name} = {json.dumps(value)}")


def parse_int(text: str, name: str, *, is_signed: bool = False) -> int:
    """Parse a number that was typed; raise a ConfigError that names the field if it is not one."""
    try:
        number = int(text)
    except ValueError:
        raise ConfigError(f"invalid {name}: expected an integer, got {text!r}") from None
    if number < 0 and not is_signed:
        raise ConfigError(f"invalid {name}: expected an integer from 0, got {text!r}")
    return number
