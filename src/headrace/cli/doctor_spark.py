"""Checks of `headrace doctor --spark`: start Spark as a job would, and look at the interpreters of its workers.

    a process of its own (headrace.spark.session_probe) → lines of JSON → findings

The process has a time limit, and is ended with its JVM.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import headrace
from headrace.cli.doctor_machine import Finding, fail, ok, warn
from headrace.errors import HeadraceError
from headrace.spark.local_session import WHEEL_ORIGIN, find_java
from headrace.spark.session_probe import NOT_FOUND
from headrace.spark.session_settings import STREAMS_MIN, version_of
from headrace.spark.worker_check import WorkerPython

SECONDS_MAX = 120.0
LOG_CHARS_MAX = 2000
USE_THIS = (
    f"export PYSPARK_PYTHON={sys.executable} before you start the job (and unset PYSPARK_DRIVER_PYTHON), or build the "
    "session with headrace.spark.configure(builder) or headrace.spark.session()"
)


def check_spark_runs(seconds_max: float = SECONDS_MAX) -> Iterator[Finding]:
    """Start a session without any help of headrace, and check the format and the workers."""
    facts, log = _probe(seconds_max)
    if "version" not in facts:
        problem = facts.get("problem") or f"not started after {seconds_max:g} s"
        yield fail("spark session", f"Spark does not start: {problem}", _start_remedy(log))
        return
    fact = f"Spark {facts['version']} starts on {facts['master']} with Java {facts['java']}"
    if version_of(facts["version"]) < STREAMS_MIN:
        needed = ".".join(map(str, STREAMS_MIN))
        yield warn("spark session", fact, f"pip install 'pyspark>={needed}' to write streams; batches work")
    else:
        yield ok("spark session", fact)
    yield _check_format(facts, seconds_max)
    yield from _check_workers(facts, seconds_max)


def _check_format(facts: Mapping[str, Any], seconds_max: float) -> Finding:
    problem = facts.get("format", f"no result after {seconds_max:g} s")
    interpreter = facts.get("interpreter", "")
    if not problem:
        return ok("spark format", f'format("headrace") is found with {interpreter}')
    if problem == NOT_FOUND:
        fact = f'Spark does not find format("headrace"): it starts {interpreter}, which cannot import headrace'
        return fail("spark format", fact, USE_THIS)
    return fail("spark format", f'format("headrace") fails with {interpreter}: {problem}', USE_THIS)


def _check_workers(facts: Mapping[str, Any], seconds_max: float) -> Iterator[Finding]:
    workers = [WorkerPython(*worker) for worker in facts.get("workers", ())]
    if not workers:
        problem = facts.get("workers problem", f"no result after {seconds_max:g} s")
        yield fail("spark workers", f"a task in Python fails: {problem}", USE_THIS)
    for worker in workers:
        check = f"spark worker {worker.host}"
        fact = f"{worker.interpreter}, Python {worker.python}"
        if worker.problem:
            yield fail(check, f"{fact}: {worker.problem}", USE_THIS)
        elif worker.headrace != headrace.__version__:
            fact = f"{fact}, headrace {worker.headrace}, but the driver has headrace {headrace.__version__}"
            yield fail(check, fact, f"install headrace=={headrace.__version__} there; or {USE_THIS}")
        else:
            yield ok(check, f"{fact}, headrace {worker.headrace}")


def _start_remedy(log: str) -> str:
    if find_spec("pyspark") is None:
        return "pip install 'headrace[spark]'"
    try:
        java = find_java()
    except HeadraceError as error:
        return str(error)
    if java.origin == WHEEL_ORIGIN:
        return f"Spark looks for Java in JAVA_HOME and on the PATH, not in {java.home}: use headrace.spark.session()"
    last = log.strip().splitlines()[-1:] or ["it printed nothing"]
    return f"see the java and spark checks; the last line of its log: {last[0]}"


def _probe(seconds_max: float) -> tuple[dict[str, Any], str]:
    """Return the facts of all lines, and the end of the log."""
    command = [sys.executable, "-m", "headrace.spark.session_probe"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, log = process.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        _end(process)
        output, log = process.communicate()
    except BaseException:
        _end(process)
        raise
    return _parse_facts(output), log[-LOG_CHARS_MAX:]


def _parse_facts(output: str) -> dict[str, Any]:
    """Return the facts of all lines that are objects of JSON; others were printed by start-up files."""
    facts: dict[str, Any] = {}
    for line in output.splitlines():
        try:
            line_facts = json.loads(line)
        except ValueError:
            continue
        if not isinstance(line_facts, dict):
            continue
        if "workers" in line_facts and "problem" in line_facts:
            line_facts = {"workers": [], "workers problem": line_facts["problem"]}
        facts |= line_facts
    return facts


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the process and the JVM that it has started: they are in a process group of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
