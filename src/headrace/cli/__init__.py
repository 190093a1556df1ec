"""The command `headrace`.

commands.py        the top-level group, which imports a command's module when it is called; `completion`
produce.py         headrace produce: produce_input.py reads, record_sender.py sends
consume.py         headrace consume: offset_ranges.py selects, record_reader.py reads; group_reader.py reads as a
                   member of a group
record_json.py     a record as a line of JSON, and back
topic.py, group.py, txn.py, acl.py, user.py, quota.py, audit.py, bench.py, config_show.py, demo.py, pipeline.py, ui.py,
verify.py          one command each
broker.py          headrace broker; `broker start` in broker_start.py
doctor.py          headrace doctor: checks of this machine (doctor_machine.py) and of brokers (doctor_broker.py,
                   listener_probe.py)

connection.py      -b, -X, --config: the cluster that a command uses
settings.py        precedence of flags, environment, file and defaults
connectivity.py    the first connection to a cluster, and its errors
broker_control.py  brokers on this machine: control calls, and starting one for a command
output.py          text, tables, JSON, errors and exit codes
shared_options.py  options and parsers that several commands share
signals.py         graceful stop on SIGINT and SIGTERM
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


class LazyModule:
    """A module that is imported when one of its attributes is first used: `--help` does not load the clients."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


def main() -> None:
    """Run the console script."""
    # Imported here: click is an optional dependency, and its absence gets a message instead of a traceback.
    try:
        from headrace.cli.commands import headrace
    except ImportError as error:
        if error.name != "click":
            raise
        sys.exit("headrace: the command line needs click, which is not installed: pip install 'headrace[cli]'")
    headrace()
