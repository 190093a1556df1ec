"""Small parts of pages: text in any tag, sections, tiles with a figure, what is wrong, what is not there yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

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
