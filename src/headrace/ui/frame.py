"""The frame of every page: header, navigation, error banner, footer; and the URLs of pages.

    with frame(view, "Groups", "/groups") as page:
        table = ServerTable(...)
        page.live(table.refresh)

Theme and shortcuts are in view.js, colours and layout in view.css.
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
    ("Consumers", "/consumers", "r"),
    ("Clients", "/clients", "c"),
    ("Transactions", "/transactions", "x"),
    ("Groups", "/groups", "g"),
    ("Pipelines", "/pipelines", "s"),
    ("Access", "/access", "a"),
    ("Requests", "/requests", "r"),
    ("Faults", "/faults", "f"),
)
"""Name, path, and the key that opens it after `g`."""

_FOLDER = Path(__file__).parent


def head_html() -> str:
    """Return the style sheet and script of all pages, to be embedded in each."""
    style, script = (_FOLDER / "view.css").read_text(), (_FOLDER / "view.js").read_text()
    return f"<style>{style}</style><script>{script}</script>"


class Page:
    """A page open in a browser."""

    def __init__(self, view: View, problem: Problem) -> None:
        self.view = view
        self._problem = problem

    def live(self, refresh: Callable[[], object]) -> None:
        """Call `refresh` now and every LIVE_SECONDS while the page is open. It must not block.

        An exception is shown on the page.
        """

        def checked() -> None:
            try:
                refresh()
            except Exception as error:
                if not isinstance(error, HeadraceError):
                    log.exception("internal error while refreshing a page")
                self._problem.set(f"Cannot refresh this page: {error}")
            else:
                self._problem.set(None)

        checked()
        ui.timer(LIVE_SECONDS, checked)


@contextmanager
def frame(view: View, title: str, path: str) -> Iterator[Page]:
    """Build the frame of a page around the content built in the block. `path` selects the navigation entry."""
    ui.page_title(f"{title} · headrace")
    ui.query(".nicegui-content").classes("hr-content")
    with ui.element("div").classes("hr-shell"):
        _header(view)
        _navigation(path)
        with ui.element("main").classes("hr-main").props('id="hr-main" tabindex="-1"'):
            banner = Problem()
            banner.props('id="hr-failure"')
            Text("h1", title).classes("hr-title")
            problem = Problem()
            page = Page(view, problem)
            page.live(lambda: _show_failure(view, banner))
            yield page
        _footer(view)


def _header(view: View) -> None:
    with ui.element("header").classes("hr-header"):
        ui.link("Skip to content", "#hr-main").classes("hr-skip")
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


def _show_failure(view: View, banner: Problem) -> None:
    failure = view.cluster.failure
    if failure is None:
        banner.set(None)
        return
    last_s = view.cluster.last_success_s
    shown = f"Showing data from {formatting.clock(last_s)}" if last_s else "No data yet"
    banner.set(
        f"No response from the cluster at {view.cluster.address} since {formatting.clock(failure.since)} "
        f"({formatting.duration(time.time() - failure.since)}): {_sentence(failure.text)} {shown}; retrying.",
    )


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


def _footer(view: View) -> None:
    with ui.element("footer").classes("hr-footer"):
        ui.label(f"headrace {__version__}")
        ui.label("All times are UTC")
        ui.label("Sizes are in binary units (1 KiB = 1024 B)")
        if view.read_only:
            ui.label("This view is read-only")


def topic_url(name: str) -> str:
    return f"/topics/{quote(name, safe='')}"


def group_url(name: str) -> str:
    return f"/group?{urlencode({'name': name})}"


def transaction_url(transactional_id: str) -> str:
    return f"/transaction?{urlencode({'id': transactional_id})}"


def producer_url(id: str) -> str:
    return f"/producers?{urlencode({'id': id})}"


def consumer_url(id: str) -> str:
    return f"/consumers?{urlencode({'id': id})}"


def client_url(id: str) -> str:
    return f"/clients?{urlencode({'id': id})}"


def pipeline_url(name: str) -> str:
    return f"/pipelines?{urlencode({'name': name})}"


def view_url() -> str:
    """Return the URL of this view as the browser knows it; producers can report to it."""
    return str(ui.context.client.request.base_url).rstrip("/")
