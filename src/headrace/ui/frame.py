"""What is around every page: header, navigation, what is wrong with the cluster, theme, shortcuts.

    with frame(view, "Groups", "/groups") as page:
        table = ServerTable(...)
        page.live(table.refresh)

The theme and the shortcuts are the browser's business: view.js. Colours and layout are in view.css.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

from nicegui import ui

from headrace import __version__
from headrace.errors import HeadraceError
from headrace.ui import formatting
from headrace.ui.elements import Problem, Text
from headrace.ui.view import View

log = logging.getLogger("headrace.ui")

LIVE_SECONDS = 1.0
NAVIGATION = (
    ("Overview", "/", "o"),
    ("Topics", "/topics", "t"),
    ("Producers", "/producers", "p"),
    ("Transactions", "/transactions", "x"),
    ("Groups", "/groups", "g"),
    ("Pipelines", "/pipelines", "s"),
    ("Faults", "/faults", "f"),
)
"""Name, address, and the key that goes there after `g`."""

_FOLDER = Path(__file__).parent


def head_html() -> str:
    """Style and script of all pages, as part of the page: nothing more to be fetched."""
    style, script = (_FOLDER / "view.css").read_text(), (_FOLDER / "view.js").read_text()
    return f"<style>{style}</style><script>{script}</script>"


class Page:
    """A page that is open in a browser."""

    def __init__(self, view: View, problem: Problem) -> None:
        self.view = view
        self._problem = problem

    def live(self, refresh: Callable[[], object], seconds: float = LIVE_SECONDS) -> None:
        """Call it now, and then every `seconds` while the page is open. It must not wait: it looks at feeds.

        What it raises is shown on the page, in words.
        """

        def checked() -> None:
            try:
                refresh()
            except Exception as error:
                if not isinstance(error, HeadraceError):
                    log.exception("a page could not be brought up to date")
                self._problem.tell(f"This page could not be brought up to date: {error}")
            else:
                self._problem.tell(None)

        checked()
        ui.timer(seconds, checked)


@contextmanager
def frame(view: View, title: str, path: str) -> Iterator[Page]:
    """The frame of a page; what the block makes is its content. `path` says which entry of the navigation it is."""
    ui.page_title(f"{title} · headrace")
    ui.query(".nicegui-content").classes("hr-content")
    with ui.element("div").classes("hr-shell"):
        _header(view)
        _navigation(path)
        with ui.element("main").classes("hr-main").props('id="hr-main" tabindex="-1"'):
            banner = Problem()
            banner.props('id="hr-trouble"')
            Text("h1", title).classes("hr-title")
            problem = Problem()
            page = Page(view, problem)
            page.live(lambda: _tell_trouble(view, banner))
            yield page
        _footer(view)


def _header(view: View) -> None:
    with ui.element("header").classes("hr-header"):
        ui.link("Skip to the content", "#hr-main").classes("hr-skip")
        ui.link("headrace", "/").classes("hr-brand")
        ui.label(view.cluster.address).classes("hr-address").props('title="bootstrap.servers"')
        if view.read_only:
            ui.label("read-only").classes("hr-chip")
        ui.element("span").classes("hr-spring")
        ui.html('<button type="button" id="hr-theme" class="hr-button">Theme: auto</button>', sanitize=False)
        ui.html('<button type="button" id="hr-help" class="hr-button">Shortcuts: ?</button>', sanitize=False)


def _navigation(path: str) -> None:
    with ui.element("nav").classes("hr-nav").props('aria-label="Pages"'):
        for name, target, key in NAVIGATION:
            link = ui.link(name, target).classes("hr-nav-link").props(f'data-key="{key}" title="Shortcut: g {key}"')
            if target == path:
                link.classes("hr-here").props('aria-current="page"')


def _tell_trouble(view: View, banner: Problem) -> None:
    trouble = view.cluster.trouble
    if trouble is None:
        banner.tell(None)
        return
    good = view.cluster.good_at
    seen = f"What is shown is of {formatting.clock(good)}" if good else "Nothing has been seen of it yet"
    banner.tell(
        f"The cluster at {view.cluster.address} does not answer since {formatting.clock(trouble.since)} "
        f"({formatting.duration(time.time() - trouble.since)}): {_ended(trouble.text)} {seen}. Trying again.",
    )


def _ended(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


def _footer(view: View) -> None:
    with ui.element("footer").classes("hr-footer"):
        ui.label(f"headrace {__version__}")
        ui.label("All times are UTC")
        ui.label("Sizes in powers of 1024")
        if view.read_only:
            ui.label("Nothing can be changed in this view")


def topic_address(name: str) -> str:
    return f"/topics/{quote(name, safe='')}"


def group_address(name: str) -> str:
    return f"/group?{urlencode({'name': name})}"


def transaction_address(transactional_id: str) -> str:
    return f"/transaction?{urlencode({'id': transactional_id})}"


def producer_address(id: str) -> str:
    return f"/producers?{urlencode({'id': id})}"


def pipeline_address(name: str) -> str:
    return f"/pipelines?{urlencode({'name': name})}"


def own_url() -> str:
    """Where the browser of the page that is being built has found this view: what others may report to."""
    return str(ui.context.client.request.base_url).rstrip("/")
