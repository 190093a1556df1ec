"""Asking before something is changed for good."""

from __future__ import annotations

import sys

import click

from headrace.cli.output import WrongUsageError

yes_option = click.option("-y", "--yes", is_flag=True, help="Do it without asking.")


def is_confirmed(question: str, yes: bool) -> bool:
    """Whether to go on: --yes, or the answer of a person at a terminal. Without either it is wrong usage."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise WrongUsageError(f"{question} There is nobody to ask: --yes does it.")
    return click.confirm(question, err=True)
