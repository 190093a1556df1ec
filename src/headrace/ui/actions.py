"""What changes something: asked for, checked, confirmed where it destroys, bounded in time, and told how it ended.

    page:     action_button(view, "Delete the topic", delete, confirm="… This cannot be undone.", done="…")
    or        await run_action(view, problem, "Delete the topic", delete, …)

    read-only? ─► confirmation ─► in a thread, with a connection of its own ─► done, or what went wrong, in its place

`delete` takes an AdminClient, may block and may raise. In a read-only view there is no button, and whoever calls all
the same is refused here, on the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from nicegui import ui

from headrace.client.admin import AdminClient
from headrace.errors import HeadraceError, TimedOutError
from headrace.ui.collector import ACTION_MS_MAX
from headrace.ui.elements import Problem, Text
from headrace.ui.view import View

log = logging.getLogger("headrace.ui")

GRACE_SECONDS = 5.0
"""On top of what the client gives itself: for a thread to become free, and for the client to give up by itself."""

THREADS_MAX = 16
_threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="headrace-ui")

T = TypeVar("T")


async def confirmed(question: str, *, yes: str, typed: str | None = None) -> bool:
    """Ask before something is destroyed. With `typed`, that text has to be typed first."""
    with ui.dialog() as dialog, ui.element("div").classes("hr-dialog").props('role="alertdialog" aria-label="Confirm"'):
        Text("p", question)
        field: ui.input | None = None
        if typed is not None:
            field = ui.input(label=f"Type {typed} to confirm").props("outlined dense autofocus")
        with ui.element("div").classes("hr-buttons"):
            button("Cancel", lambda: dialog.submit(False)).props("autofocus" if typed is None else "")
            sure = button(yes, lambda: dialog.submit(True)).classes("hr-danger")
            if field is not None:
                sure.props("disabled")
                field.on_value_change(
                    lambda event: sure.props(remove="disabled") if event.value == typed else sure.props("disabled")
                )
    try:
        answer = await dialog
        return bool(answer) and (field is None or field.value == typed)
    finally:
        dialog.delete()


async def in_thread(seconds_max: float, do: Callable[[], T]) -> T:
    """The result of something that blocks, or a TimedOutError: a page never waits for ever."""
    try:
        async with asyncio.timeout(seconds_max):
            return await asyncio.get_running_loop().run_in_executor(_threads, do)
    except TimeoutError as error:
        if isinstance(error, HeadraceError):
            raise
        raise TimedOutError(f"no answer for {seconds_max:g} s; it may still happen") from error


async def run_action(
    view: View,
    problem: Problem,
    do: Callable[[AdminClient], T],
    *,
    what: str,
    done: str | Callable[[T], str] | None = None,
    confirm: str | None = None,
    typed: str | None = None,
    timeout_ms: float = ACTION_MS_MAX,
) -> T | None:
    """Do it, and say beside the button what went wrong; None if it was not done."""

    def connected() -> T:
        view.check_writable()
        with view.cluster.connect(timeout_ms) as admin:
            return do(admin)

    try:
        view.check_writable()
        if confirm is not None and not await confirmed(confirm, yes=what, typed=typed):
            return None
        problem.tell(None)
        result = await in_thread(timeout_ms / 1000 + GRACE_SECONDS, connected)
    except HeadraceError as error:
        problem.tell(f"{what}: {error}")
        return None
    except Exception as error:
        log.exception("an action failed: %s", what)
        problem.tell(f"{what}: {type(error).__name__}: {error}")
        return None
    view.cluster.hurry()
    if done is not None:
        ui.notify(
            done if isinstance(done, str) else done(result), color="green-10", icon="check", position="bottom-right"
        )
    return result


def button(label: str, on_click: Callable[[], object]) -> ui.element:
    """A plain button, of the browser's own kind: keyboard and screen reader know it."""
    made = Text("button", label).classes("hr-button").props('type="button"')
    made.on("click", lambda: on_click())
    return made


def action_button(
    view: View,
    label: str,
    do: Callable[[AdminClient], T],
    *,
    done: str | Callable[[T], str] | None = None,
    confirm: str | Callable[[], str] | None = None,
    typed: str | None = None,
    after: Callable[[T], object] | None = None,
    timeout_ms: float = ACTION_MS_MAX,
) -> ui.element | None:
    """A button that changes something, with a place for what goes wrong; None in a read-only view."""
    if view.read_only:
        return None

    async def press() -> None:
        made.props("disabled")
        try:
            question = confirm() if callable(confirm) else confirm
            result = await run_action(
                view, problem, do, what=label, done=done, confirm=question, typed=typed, timeout_ms=timeout_ms
            )
        finally:
            made.props(remove="disabled")
        if result is not None and after is not None:
            after(result)

    made = button(label, press)
    if confirm is not None:
        made.classes("hr-danger")
    problem = Problem()
    return made
