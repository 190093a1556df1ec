"""`headrace …` as a user types it, in this process: what it printed, and its exit code."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from headrace.cli.commands import headrace


def typed(*arguments: object, stdin: str | None = None, **environment: str) -> Result:
    """Run a command. What is no terminal here is none there: nobody answers questions."""
    return CliRunner().invoke(headrace, [str(argument) for argument in arguments], input=stdin, env=environment)


def facts(*arguments: object) -> Any:
    """What a command that succeeds prints as JSON."""
    done = typed(*arguments, "--format", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refused(code: int, *arguments: object, **environment: str) -> str:
    """The paragraph with which a command ends that does not succeed: one, without a traceback."""
    done = typed(*arguments, **environment)
    assert done.exit_code == code, (done.exit_code, done.output)
    said = done.stderr.strip()
    assert said, "it said nothing"
    assert "Traceback" not in done.output
    assert "\n\n" not in said.partition("Error:")[2], said
    return " ".join(said.split())
