"""The command `headrace`.

commands.py   the group of all groups, each imported when it is asked for: one file a group
broker.py     headrace broker …; its faults in broker_faults.py
pipeline.py   headrace pipeline …; its progress in pipeline_output.py, Ctrl-C in stopping.py
audit.py      headrace audit
running.py    the broker that runs on a data folder
output.py     what all of them share: formats, errors in one paragraph, exit codes
"""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    try:
        import click  # noqa: F401 - the one import that is not a matter of course
    except ImportError:
        sys.exit("headrace: the command line needs click, which is not installed: pip install 'headrace[cli]'")
    from headrace.cli.commands import headrace

    headrace()
