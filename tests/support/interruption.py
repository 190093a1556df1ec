"""Interrupts a call at every point at which Python may run a signal handler.

Python runs signal handlers on the main thread when a function begins, after a call, and at the end of a loop iteration.
A trace function interrupts headrace's code at one of these points in each trial.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import headrace

POINTS_MAX = 3000
PACKAGE = str(Path(headrace.__file__).parent)
# Code that takes locks and changes shared state.
TRACED = tuple(
    f"{PACKAGE}/{part}" for part in ("producer/", "client/", "producer/_send/reference", "wire/_reference/records")
)


class Instruction(NamedTuple):
    opcode: str
    handler: int | None
    """The offset of its exception handler."""


@cache
def instructions(code: CodeType) -> dict[int, Instruction]:
    code_info = dis.Bytecode(code)
    ranges = code_info.exception_entries  # type: ignore[attr-defined]
    by_offset = {}
    for instruction in code_info:
        handlers = [entry.target for entry in ranges if entry.start <= instruction.offset < entry.end]
        by_offset[instruction.offset] = Instruction(instruction.opname, handlers[-1] if handlers else None)
    return by_offset


def is_interruptible(last: Instruction | None, following: Instruction) -> bool:
    """Return whether Python runs signal handlers between these two, and both have the same exception handler."""
    if last is None or last.opcode == "RESUME":
        return True
    return last.opcode.startswith(("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")) and last.handler == following.handler


class Interruption:
    """Runs a call, with `action` at its `number`-th point, and once more `again` points later, in the clean-up."""

    def __init__(self, number: int, action: Callable[[], None], again: int = 0) -> None:
        self.happened = False
        self.happened_again = False
        self.where = ""
        self._left = number
        self._again = again
        self._action = action
        self._last: dict[FrameType, Instruction] = {}

    def run(self, call: Callable[[], object]) -> None:
        sys.settrace(self._begin)
        if self._again:
            sys.setprofile(self._trace_again)
        try:
            call()
        finally:
            sys.setprofile(None)
            sys.settrace(None)  # last: a call that the profile function sees sets it
            self._last.clear()

    def _trace_again(self, frame: FrameType, event: str, argument: object) -> None:
        """Install the trace function again at the next call: Python removes it after an exception, unlike this one."""
        if not self.happened or self.happened_again or sys.gettrace() is not None:
            return
        sys.settrace(self._begin)
        caller: FrameType | None = frame
        while caller is not None:
            if caller.f_code.co_filename.startswith(TRACED):
                known = instructions(caller.f_code)
                self._last[caller] = known[max(offset for offset in known if offset <= max(0, caller.f_lasti))]
                caller.f_trace, caller.f_trace_opcodes, caller.f_trace_lines = self._trace, True, False
            caller = caller.f_back

    def _begin(self, frame: FrameType, event: str, argument: object) -> Any:
        if self._left == 0 or not frame.f_code.co_filename.startswith(TRACED):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._trace

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if event != "opcode" or self._left == 0:
            return self._trace
        last, following = self._last.get(frame), instructions(frame.f_code)[frame.f_lasti]
        self._last[frame] = following
        if is_interruptible(last, following):
            self._left -= 1
            if self._left == 0:
                self.happened_again = self.happened
                self.happened = True
                self._left, self._again = self._again, 0
                self.where += f"{frame.f_code.co_qualname}, line {frame.f_lineno}, before {following.opcode}; "
                self._action()
        return self._trace


def ctrl_c() -> None:
    raise KeyboardInterrupt


def sweep(
    prepare: Callable[[int], Callable[[], object]],
    action: Callable[[], None],
    check: Callable[[int], None],
    step: int = 1,
) -> int:
    """Interrupt the call that `prepare` returns at every `step`-th point, one a trial; return the number of points."""
    for number in range(1, POINTS_MAX, step):
        if not _trial(Interruption(number, action), number, prepare, check).happened:
            return number - 1
    raise AssertionError(f"more than {POINTS_MAX} points")


def sweep_twice(
    prepare: Callable[[int], Callable[[], object]], check: Callable[[int], None], step: int, points: range
) -> int:
    """Press Ctrl-C at every `step`-th point and at each point of the clean-up; return the number of the latter."""
    seconds = 0
    for number in points[::step]:
        for again in range(1, POINTS_MAX):
            if not _trial(Interruption(number, ctrl_c, again), number, prepare, check).happened_again:
                break
            seconds += 1
    return seconds


def _trial(
    interruption: Interruption,
    number: int,
    prepare: Callable[[int], Callable[[], object]],
    check: Callable[[int], None],
) -> Interruption:
    call = prepare(number)
    try:
        interruption.run(call)
    except KeyboardInterrupt:
        assert interruption.happened
    try:
        check(number)
    except BaseException as error:
        raise AssertionError(f"interrupted at point {number}, {interruption.where}: {error!r}") from error
    return interruption
