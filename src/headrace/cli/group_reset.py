"""Where `group reset` is to set offsets to: what --to and --shift say."""

from __future__ import annotations

from headrace.cli.output import WrongUsageError
from headrace.cli.times import parse_time_ms
from headrace.client.facts.resets import Target


def parse_target(to: str | None, shift: int | None) -> Target:
    if (to is None) == (shift is None):
        raise WrongUsageError("either --to or --shift is needed, to know where the offsets go")
    if to is None:
        return Target(shift=shift)
    if to in ("earliest", "latest"):
        return Target(end=to)
    if to.startswith("@"):
        return Target(time_ms=parse_time_ms(to[1:], "--to"))
    if not to.isdecimal():
        raise WrongUsageError(f"--to takes earliest, latest, an offset or @TIME, not {to!r}")
    return Target(offset=int(to))
