"""Drawings: boxes with figures in them, and arrows between, as inline SVG.

    drawing = Drawing("A record's journey", 1180, 420)
    page.live(lambda: drawing.show([Box(…), …], [Arrow(…), …]))

Colours are the page's own (SVG knows CSS variables), so light and dark both work. What is told by a colour is also told
by a thicker frame and in words. All text is escaped: some of it comes from other processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from nicegui import ui

LINE_PIXELS = 18
TITLE_PIXELS = 24
PADDING_PIXELS = 12
BAR_PIXELS = 6
CHARACTER_PIXELS = 6.9
"""Of the text in a box, at most: what does not fit is cut, and whole in the tooltip."""

Tone = Literal["", "good", "warn", "bad", "here", "faint"]
_STROKES = {
    "": ("var(--hr-line)", 1.2),
    "good": ("var(--hr-good)", 2.0),
    "warn": ("var(--hr-warn)", 2.5),
    "bad": ("var(--hr-bad)", 2.5),
    "here": ("var(--hr-blue)", 3.0),
    "faint": ("var(--hr-line)", 1.0),
}


@dataclass(frozen=True, slots=True)
class Box:
    """A step, with lines of text; `bar` is a share from 0 to 1, drawn at its foot."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: Sequence[str] = ()
    tone: Tone = ""
    bar: float | None = None
    mark: str = ""
    """A word in the corner, so that nothing is told by colour alone."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """Through these points, to the last."""

    points: Sequence[tuple[int, int]]
    label: str = ""
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Label:
    """A word that stands by itself."""

    x: int
    y: int
    text: str


class Drawing:
    """A place in a page for a drawing that changes."""

    def __init__(self, label: str, width: int, height: int) -> None:
        self._label = label
        self._width = width
        self._height = height
        self._element = ui.html("", sanitize=False).classes("hr-drawing")

    def show(self, boxes: Sequence[Box], arrows: Sequence[Arrow], labels: Sequence[Label] = ()) -> None:
        """Draw this; nothing is sent to the browser if it is the same."""
        svg = self._svg(boxes, arrows, labels)
        if svg != self._element.content:
            self._element.set_content(svg)

    def _svg(self, boxes: Sequence[Box], arrows: Sequence[Arrow], labels: Sequence[Label]) -> str:
        told = "; ".join(", ".join([box.title, box.mark, *box.lines]) for box in boxes)
        parts = [
            f'<svg viewBox="0 0 {self._width} {self._height}" role="img" aria-label="{escape(self._label)}"'
            f' style="width: 100%; max-width: {self._width * 5 // 4}px">',
            f"<desc>{escape(told)}</desc>",
            '<defs><marker id="hr-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
            ' orient="auto"><path d="M0 0L8 4L0 8z" fill="var(--hr-muted)"/></marker></defs>',
            *map(_arrow, arrows),
            *map(_box, boxes),
            *(f'<text x="{one.x}" y="{one.y}" fill="var(--hr-muted)">{escape(one.text)}</text>' for one in labels),
            "</svg>",
        ]
        return "".join(parts)


def _box(box: Box) -> str:
    colour, width = _STROKES[box.tone]
    ink = "var(--hr-muted)" if box.tone == "faint" else "var(--hr-text)"
    left, top = box.x + PADDING_PIXELS, box.y + TITLE_PIXELS - 4
    whole = ", ".join([box.title, *box.lines])
    parts = [
        f"<g><title>{escape(whole)}</title>",
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="8" fill="var(--hr-page)"'
        f' stroke="{colour}" stroke-width="{width}"/>',
        f'<text x="{left}" y="{top}" font-weight="600" fill="{ink}">{escape(box.title)}</text>',
    ]
    if box.mark:
        parts.append(
            f'<text x="{box.x + box.width - PADDING_PIXELS}" y="{top}" text-anchor="end" font-weight="600"'
            f' fill="{ink if box.tone == "" else colour}">{escape(box.mark)}</text>'
        )
    room = int((box.width - 2 * PADDING_PIXELS) / CHARACTER_PIXELS)
    for number, line in enumerate(box.lines):
        y = top + (number + 1) * LINE_PIXELS + 2
        parts.append(f'<text x="{left}" y="{y}" fill="{ink}">{escape(_cut(line, room))}</text>')
    if box.bar is not None:
        parts.append(_bar(box, min(1.0, max(0.0, box.bar)), colour if box.tone else "var(--hr-blue)"))
    return "".join([*parts, "</g>"])


def _bar(box: Box, share: float, colour: str) -> str:
    x, y = box.x + PADDING_PIXELS, box.y + box.height - PADDING_PIXELS - BAR_PIXELS + 2
    room = box.width - 2 * PADDING_PIXELS
    return (
        f'<rect x="{x}" y="{y}" width="{room}" height="{BAR_PIXELS}" rx="3" fill="var(--hr-line)"/>'
        f'<rect x="{x}" y="{y}" width="{room * share:.1f}" height="{BAR_PIXELS}" rx="3" fill="{colour}"/>'
    )


def _arrow(arrow: Arrow) -> str:
    path = "M" + "L".join(f"{x} {y}" for x, y in arrow.points)
    dashes = ' stroke-dasharray="5 4"' if arrow.is_dashed else ""
    drawn = (
        f'<path d="{path}" fill="none" stroke="var(--hr-muted)" stroke-width="1.5" marker-end="url(#hr-tip)"{dashes}/>'
    )
    if arrow.label:
        (x1, y1), (x2, y2) = arrow.points[0], arrow.points[1]
        drawn += (
            f'<text x="{(x1 + x2) // 2 + 6}" y="{(y1 + y2) // 2 - 6}" text-anchor="middle"'
            f' fill="var(--hr-muted)">{escape(arrow.label)}</text>'
        )
    return drawn


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else text[: max(1, characters_max - 1)] + "…"
