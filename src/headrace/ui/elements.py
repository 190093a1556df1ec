"""Small parts of pages: text in any tag, sections, tiles with a figure, what is wrong, what is not there yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape

from nicegui import events, ui
from nicegui.elements.mixins.text_element import TextElement

from headrace.errors import ConfigError
from headrace.ui.formatting import UNKNOWN


class Text(TextElement):
    """Plain text in an element of any kind."""

    def __init__(self, tag: str, text: str = "") -> None:
        super().__init__(tag=tag, text=text)

    def show(self, text: str) -> None:
        """Change it; nothing is sent to the browser if it is the same."""
        if text != self.text:
            self.set_text(text)


class Problem(Text):
    """What is wrong, in the place where it is wrong; hidden while nothing is."""

    def __init__(self, *, is_live: bool = True) -> None:
        super().__init__("div")
        self.classes("hr-problem")
        if is_live:
            self.props('role="alert"')
        self.set_visibility(False)

    def tell(self, text: str | None) -> None:
        """Say it; None: all is well."""
        if text:
            self.show(f"⚠ {text}")
        if self.visible != bool(text):
            self.set_visibility(bool(text))


@contextmanager
def section(title: str, *, level: int = 2) -> Iterator[ui.element]:
    """A part of a page, with a heading."""
    with ui.element("section").classes("hr-section") as made:
        Text(f"h{level}", title).classes("hr-heading")
        yield made


class Tile:
    """A figure with its name, and a line that says more."""

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


class Facts:
    """Names and values, one under the other."""

    def __init__(self, names: Sequence[str]) -> None:
        self._values: dict[str, Text] = {}
        with ui.element("dl").classes("hr-facts"):
            for name in names:
                Text("dt", name)
                self._values[name] = Text("dd", UNKNOWN)

    def show(self, name: str, value: str) -> None:
        self._values[name].show(value)


class Empty(Text):
    """What to do where there is nothing to see yet."""

    def __init__(self, text: str) -> None:
        super().__init__("p", text)
        self.classes("hr-empty")


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
