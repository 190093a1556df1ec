"""Actions: changes to the cluster, with confirmation where data is destroyed, a time-out, and feedback.

    page:     action_button(view, "Delete topic", delete, confirm="… This cannot be undone.", done="…")
    or        await run_action(view, problem, delete, name="Delete topic", …)

    read-only check ─► confirmation ─► in a thread, on a separate connection ─► notification, or the error in place

`delete` takes an AdminClient, may block and may raise. A read-only view has no button, and the server refuses the
action as well.
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
"""Added to the client's own time-out: for a thread to become free and for the client to time out first."""

THREADS_MAX = 16
_threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="headrace-ui")

T = TypeVar("T")


async def confirm_dialog(question: str, *, action: str, typed: str | None = None) -> bool:
    """Ask for confirmation. With `typed`, the user has to type that text first."""
    with ui.dialog() as dialog, ui.element("div").classes("hr-dialog").props('role="alertdialog" aria-label="Confirm"'):
        Text("p", question)
        field: ui.input | None = None
        if typed is not None:
            field = ui.input(label=f"Type {typed} to confirm").props("outlined dense autofocus")
        with ui.element("div").classes("hr-buttons"):
            button("Cancel", lambda: dialog.submit(False)).props("autofocus" if typed is None else "")
            confirm = button(action, lambda: dialog.submit(True)).classes("hr-danger")
            if field is not None:
                confirm.props("disabled")
                field.on_value_change(
                    lambda event: (
                        confirm.props(remove="disabled") if event.value == typed else confirm.props("disabled")
                    )
                )
    try:
        choice = await dialog
        return bool(choice) and (field is None or field.value == typed)
    finally:
        dialog.delete()


async def in_thread(seconds_max: float, call: Callable[[], T]) -> T:
    """Run a blocking call in a thread; raise TimedOutError after `seconds_max`."""
    try:
        async with asyncio.timeout(seconds_max):
            return await asyncio.get_running_loop().run_in_executor(_threads, call)
    except TimeoutError as error:
        if isinstance(error, HeadraceError):
            raise
        raise TimedOutError(f"timed out after {seconds_max:g} s; the action may still complete") from error


async def run_action(
    view: View,
    problem: Problem,
    action: Callable[[AdminClient], T],
    *,
    name: str,
    done: str | Callable[[T], str] | None = None,
    confirm: str | None = None,
    typed: str | None = None,
    timeout_ms: float = ACTION_MS_MAX,
) -> T | None:
    """Run an action and show its error in `problem`; return None if it was not done."""

    def connected() -> T:
        view.check_writable()
        with view.cluster.connect(timeout_ms) as admin:
            return action(admin)

    try:
        view.check_writable()
        if confirm is not None and not await confirm_dialog(confirm, action=name, typed=typed):
            return None
        problem.set(None)
        result = await in_thread(timeout_ms / 1000 + GRACE_SECONDS, connected)
    except HeadraceError as error:
        problem.set(f"{name}: {error}")
        return None
    except Exception as error:
        log.exception("internal error in action %s", name)
        problem.set(f"{name}: {type(error).__name__}: {error}")
        return None
    view.cluster.refresh_now()
    if done is not None:
        ui.notify(
            done if isinstance(done, str) else done(result), color="green-10", icon="check", position="bottom-right"
        )
    return result


def button(label: str, on_click: Callable[[], object]) -> ui.element:
    """A native button, known to keyboards and screen readers."""
    element = Text("button", label).classes("hr-button").props('type="button"')
    element.on("click", lambda: on_click())
    return element


def action_button(
    view: View,
    label: str,
    action: Callable[[AdminClient], T],
    *,
    done: str | Callable[[T], str] | None = None,
    confirm: str | Callable[[], str] | None = None,
    typed: str | None = None,
    after: Callable[[T], object] | None = None,
) -> ui.element | None:
    """A button that runs an action and shows its error; None in a read-only view."""
    if view.read_only:
        return None

    async def press() -> None:
        element.props("disabled")
        try:
            question = confirm() if callable(confirm) else confirm
            result = await run_action(view, problem, action, name=label, done=done, confirm=question, typed=typed)
        finally:
            element.props(remove="disabled")
        if result is not None and after is not None:
            after(result)

    element = button(label, press)
    if confirm is not None:
        element.classes("hr-danger")
    problem = Problem()
    return element
