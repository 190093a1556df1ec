"""What is prepared in Spark's Python processes. In a process of its own: garbage stays frozen until it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from headrace.spark.python_process import REUSED

PROCESS_SECONDS_MAX = 30
CODE = """
import gc, json, os, socket
from headrace.spark.python_process import prepare_process

def options(connection):
    return [connection.getsockopt(socket.IPPROTO_TCP, option) for option in (socket.TCP_NODELAY, socket.TCP_QUICKACK)]

def task(outfile):
    prepare_process()

listener = socket.create_server(("127.0.0.1", 0))
spark, other = (socket.create_connection(listener.getsockname()) for _ in range(2))
spark.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
first, second = socket.socketpair()
before = gc.get_freeze_count()
task(first.makefile("wb"))
frozen = gc.get_freeze_count()
later = [[] for _ in range(1000)]
task(spark.makefile("wb"))
facts = {"before": before, "frozen": frozen, "again": gc.get_freeze_count()}
facts |= {"spark": options(spark), "other": options(other)[0], "descriptors": len(os.listdir("/proc/self/fd"))}
task(spark.makefile("wb"))
socket.setdefaulttimeout(60)
task(spark.makefile("wb"))
task(first.makefile("wb"))
socket.setdefaulttimeout(None)
facts["blocking"] = [os.get_blocking(spark.fileno()), os.get_blocking(first.fileno())]
with open("/dev/null", "wb") as no_socket:
    task(no_socket)
task(object())
facts["left_open"] = len(os.listdir("/proc/self/fd")) - facts["descriptors"]
if os.fork() == 0:
    gc.unfreeze()
    prepare_process()
    os._exit(0 if gc.get_freeze_count() else 1)
facts["child"] = os.waitstatus_to_exitcode(os.wait()[1])
print(json.dumps(facts))
"""


def facts_of_process(**environment: str) -> dict[str, Any]:
    variables = {name: value for name, value in os.environ.items() if name != REUSED} | environment
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=PROCESS_SECONDS_MAX, env=variables
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_a_process_that_spark_uses_again_is_prepared_once_and_its_connection_every_time():
    facts = facts_of_process(**{REUSED: "1"})
    assert facts["before"] == 0
    assert facts["frozen"] > 1000  # the modules
    assert facts["again"] == facts["frozen"]
    assert facts["spark"] == [1, 1]
    assert facts["other"] == 0
    assert facts["blocking"] == [True, True]  # with a default time-out, too
    assert facts["left_open"] == 0
    assert facts["child"] == 0  # a fork is another process


def test_other_processes_are_left_alone():
    facts = facts_of_process()
    assert (facts["frozen"], facts["spark"], facts["child"]) == (0, [0, 0], 1)
