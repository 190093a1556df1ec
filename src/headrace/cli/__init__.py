"""The command `headrace`.

commands.py      the command of all commands, each imported when it is asked for: one module a command

produce.py       headrace produce: input (produce_input), sending, progress (produce_progress)
consume.py       headrace consume: ranges (offset_ranges), filters, reading, formats (consume_output)
record_json.py   a record as JSON, and back
topic.py         headrace topic …; what is known of topics in topic_facts.py
group.py         headrace group …; lag in group_lag.py, resetting offsets in group_reset.py
txn.py           headrace txn …; those that hang in txn_hanging.py, what is known of them in txn_facts.py
broker.py        headrace broker …; its faults in broker_faults.py
ui.py            headrace ui: the live view; beside a broker or the demo by ui_option.py and view_process.py
demo.py          headrace demo; its table and bars in demo_output.py
pipeline.py      headrace pipeline …; its progress in pipeline_output.py
audit.py         headrace audit
doctor.py        headrace doctor: this machine (doctor_machine), brokers (doctor_broker, listener_probe); findings.py
config_show.py   headrace config show
bench.py         headrace bench …; the producer's own in bench_producer.py
completion.py    headrace completion

connection.py    -b, -X, --config: the cluster of a command; settings.py has the precedence, reaching.py the first
                 contact, borrowed_broker.py the broker that is started for a command, running.py one that runs
output.py        formats, errors in one paragraph, exit codes; tables.py, times.py, partitions.py, confirming.py
stopping.py      Ctrl-C, for what stops in good order
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
