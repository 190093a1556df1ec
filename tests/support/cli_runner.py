"""Run `headrace` in this process, and return its output and exit code."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from headrace.cli.commands import headrace


def run_cli(*arguments: object, stdin: str | bytes | None = None, **environment: str) -> Result:
    """Run a command, without a terminal."""
    return CliRunner().invoke(headrace, [str(argument) for argument in arguments], input=stdin, env=environment)


def facts(*arguments: object) -> Any:
    """Return the JSON output of a command that succeeds."""
    done = run_cli(*arguments, "--format", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refused(code: int, *arguments: object, **environment: str) -> str:
    """Return the error of a command that fails: one paragraph, without a traceback."""
    done = run_cli(*arguments, **environment)
    assert done.exit_code == code, (done.exit_code, done.output)
    message = done.stderr.strip()
    assert message, "no error on stderr"
    assert "Traceback" not in done.output
    assert "\n\n" not in message.partition("Error:")[2], message
    return " ".join(message.split())
