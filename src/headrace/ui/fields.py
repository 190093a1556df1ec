"""Fields of forms, of the browser's own kind: a label around an input, so that keyboards and screen readers know them.

with form():
    topic = TextField("Topic", placeholder="orders")
    where = Choice("Where to", {"earliest": "the first record", "latest": "the end"}, on_change=…)
topic.value, where.value
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape

from nicegui import events, ui

from headrace.errors import ConfigError
from headrace.ui.parts import Text

CHARS_MAX = 10_000
AREA_CHARS_MAX = 200_000


class Field:
    """A value that somebody types or chooses. What the browser says is text, and is not trusted."""

    chars_max = CHARS_MAX

    def __init__(self, label: str, tag: str, value: str, on_change: Callable[[], object] | None, wide: bool) -> None:
        self.value = value
        self._on_change = on_change
        self.box = ui.element("label").classes("hr-field hr-wide" if wide else "hr-field")
        with self.box:
            Text("span", label)
            self.input = ui.element(tag).props(f'aria-label="{escape(label)}"')  # or the options would be part of it
        self.input.on("input", self._on_input, js_handler="(event) => emit(event.target.value)")

    def show(self, is_shown: bool) -> None:
        """A field that makes no sense at the moment is hidden."""
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
        """Put a value into it."""
        self.value = value
        _put(self.input, "^value", "value", value)


class TextArea(Field):
    """Several lines of text."""

    chars_max = AREA_CHARS_MAX

    def __init__(self, label: str, *, rows: int = 3) -> None:
        super().__init__(label, "textarea", "", None, True)
        self.input.props(f'rows="{rows}" maxlength="{AREA_CHARS_MAX}" spellcheck="false"')


class Tick:
    """Yes or no."""

    def __init__(self, label: str, value: bool = False, *, on_change: Callable[[], object] | None = None) -> None:
        self.value = value
        self._on_change = on_change
        with ui.element("label").classes("hr-tick"):
            self._input = ui.element("input").props('type="checkbox"')
            Text("span", label)
        self._input.on("change", self._on_tick, js_handler="(event) => emit(event.target.checked)")
        self.set(value)

    def set(self, value: bool) -> None:
        """Say yes or no in its place."""
        self.value = value
        _put(self._input, "checked", "checked", value)

    def _on_tick(self, event: events.GenericEventArguments) -> None:
        self.value = self._input.props["checked"] = event.args is True
        if self._on_change is not None:
            self._on_change()


class Choice(Field):
    """One of several, by what they are called."""

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
        """Choose one of them."""
        self.value = value
        for name, option in self._shown.items():
            _put(option, "selected", "selected", name == value)

    def _checked(self, text: str) -> str:
        return text if text in self._options else self.value


@contextmanager
def form(label: str) -> Iterator[ui.element]:
    """Fields side by side."""
    with ui.element("div").classes("hr-form").props(f'role="group" aria-label="{escape(label)}"') as made:
        yield made


def _put(element: ui.element, prop: str, name: str, value: str | bool) -> None:
    """Set a property of an input in the browser.

    What the page is built with is an attribute, which the browser takes for a beginning only. As a property, Vue would
    set it anew whenever anything on the page changes, and take away what somebody is typing (`value` is always set).
    """
    element.props[prop] = value
    element.update()
    if element.client.has_socket_connection:
        element.client.run_javascript(f"getHtmlElement({element.id}).{name} = {json.dumps(value)}")


def whole_number(text: str, what: str) -> int:
    """What was typed, as a number from 0 on; what is none is a ConfigError that names it."""
    if not text.strip().isdecimal():
        raise ConfigError(f"{what}: a whole number is wanted, not {text!r}")
    return int(text)
