"""The log of Spark's Python processes: time, level, and what a line belongs to."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

PROGRAM = """
import logging, threading
from headrace.spark.log_setup import log_context, set_up_log
set_up_log()
log = logging.getLogger("headrace.spark")
with log_context(sink="orders", batch=7, task=3):
    log.info("begun")
    thread = threading.Thread(target=logging.getLogger("headrace").warning, args=("cannot reach %s", "kafka"))
    thread.start()
    thread.join()
log.warning("between tasks")
logging.getLogger("other").warning("of another library")
"""


def run(program=PROGRAM, **environment):
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stderr.splitlines(), done.stdout


def test_lines_have_time_level_sink_batch_and_task():
    lines, _ = run()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    assert re.fullmatch(rf"{time} WARNING \[sink orders, batch 7, task 3\] cannot reach kafka", lines[0])
    assert re.fullmatch(rf"{time} WARNING between tasks", lines[1])
    assert lines[2:] == ["of another library"]


def test_headrace_log_sets_the_level():
    lines, _ = run(HEADRACE_LOG="info")
    assert lines[0].endswith("INFO    [sink orders, batch 7, task 3] begun")


def test_spark_s_table_of_worker_logs_gets_each_line_once_with_its_context():
    pytest.importorskip("pyspark.logger.worker_io")
    captured = f"""
from pyspark.logger.worker_io import capture_outputs
with capture_outputs():
    exec({PROGRAM!r})
"""
    lines, output = run(captured, PYSPARK_SPARK_SESSION_UUID="u", HEADRACE_LOG="INFO")
    assert sum("cannot reach kafka" in line for line in lines) == 1
    assert output.count("cannot reach kafka") == 1
    record = next(line for line in output.splitlines() if "cannot reach kafka" in line)
    assert '"level": "WARNING"' in record
    assert all(f'"{name}": "{value}"' in record for name, value in {"sink": "orders", "batch": 7, "task": 3}.items())
