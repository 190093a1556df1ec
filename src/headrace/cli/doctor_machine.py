"""Checks of `headrace doctor`: Finding, and the checks of this machine (Python, kernel, pyarrow, Spark, Java).

Nothing here opens a connection, and versions are read from package metadata where possible, without an import.
"""

from __future__ import annotations

import importlib
import logging
import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import headrace
from headrace.errors import HeadraceError
from headrace.spark.local_session import find_java
from headrace.spark.session_settings import STREAMS_MIN

PYTHON_MIN = (3, 11)
PYARROW_MIN = (15,)
PYSPARK_MIN = (4, 0)
CODECS = ("gzip", "snappy", "lz4", "zstd")
"""The codecs of Kafka, all of which pyarrow provides."""


class Status(Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `remedy` is empty if there is nothing to do."""

    check: str
    status: Status
    fact: str
    remedy: str = ""

    @property
    def failed(self) -> bool:
        return self.status is Status.FAIL

    def to_json(self) -> dict[str, Any]:
        return {"check": self.check, "status": self.status.value, "found": self.fact, "remedy": self.remedy or None}


def ok(check: str, fact: str) -> Finding:
    return Finding(check, Status.OK, fact)


def warn(check: str, fact: str, remedy: str) -> Finding:
    return Finding(check, Status.WARN, fact, remedy)


def fail(check: str, fact: str, remedy: str) -> Finding:
    return Finding(check, Status.FAIL, fact, remedy)


def check_machine() -> Iterator[Finding]:
    """Yield all findings; a check comes after those it depends on."""
    yield check_python()
    yield check_kernel()
    yield check_pyarrow()
    yield check_pyspark()
    yield check_java(is_needed=find_spec("pyspark") is not None)


def check_python() -> Finding:
    fact = f"Python {platform.python_version()}, headrace {headrace.__version__} in {Path(headrace.__file__).parent}"
    if sys.version_info < PYTHON_MIN:
        return fail("python", fact, f"install Python {'.'.join(map(str, PYTHON_MIN))} or newer")
    return ok("python", fact)


def check_kernel() -> Finding:
    """Report which kernel is in use, and why."""
    forced = os.environ.get("HEADRACE_KERNEL", "")
    logger = logging.getLogger("headrace")
    before = logger.level
    logger.setLevel(logging.ERROR)  # the kernel logs the same fact as a warning
    try:
        name = importlib.import_module("headrace.wire.kernel").KERNEL_NAME
    except HeadraceError as error:
        return fail("kernel", str(error), "unset HEADRACE_KERNEL, or install a C compiler and reinstall headrace")
    finally:
        logger.setLevel(before)
    if name == "compiled":
        return ok("kernel", "compiled")
    if forced:
        return warn("kernel", "Python reference, selected by HEADRACE_KERNEL=python", "unset HEADRACE_KERNEL")
    return warn(
        "kernel",
        f"Python reference, 20 to 100 times slower: the compiled kernel does not load ({_kernel_import_error()})",
        "install a C compiler (Debian: apt install gcc python3-dev), then pip install --force-reinstall "
        "--no-binary headrace headrace",
    )


def _kernel_import_error() -> str:
    try:
        importlib.import_module("headrace.wire._kernel")
    except ImportError as error:
        return str(error)
    return "unknown"


def check_pyarrow() -> Finding:
    try:
        import pyarrow as pa
    except ImportError as error:
        return fail("pyarrow", f"import failed: {error}", "pip install --force-reinstall pyarrow")
    missing = [codec for codec in CODECS if not pa.Codec.is_available(codec)]
    if _numbers(pa.__version__) < PYARROW_MIN:
        return fail("pyarrow", f"pyarrow {pa.__version__}", f"pip install 'pyarrow>={PYARROW_MIN[0]}'")
    if missing:
        remedy = "install pyarrow from a PyPI wheel; topics that use these codecs cannot be read or written"
        return warn("pyarrow", f"pyarrow {pa.__version__} without {', '.join(missing)}", remedy)
    return ok("pyarrow", f"pyarrow {pa.__version__} with {', '.join(CODECS)}")


def check_pyspark() -> Finding:
    """Check by versions whether `format("headrace")` is available; `--spark` tests it."""
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        return warn("spark", "PySpark is not installed", "to use Spark: pip install 'headrace[spark]'")
    needed = ".".join(map(str, PYSPARK_MIN))
    if _numbers(installed) < PYSPARK_MIN:
        remedy = f"pip install 'pyspark>={needed}'; older versions do not support Python data sources"
        return fail("spark", f"PySpark {installed}", remedy)
    if find_spec("pyspark_headrace") is None:
        remedy = "reinstall headrace: its package pyspark_headrace is missing"
        return fail("spark", f"PySpark {installed}, but the format headrace is not registered", remedy)
    if _numbers(installed) < STREAMS_MIN:
        remedy = f"pip install 'pyspark>={'.'.join(map(str, STREAMS_MIN))}' to write streams; batches work"
        return warn("spark", f"PySpark {installed}", remedy)
    home = os.environ.get("SPARK_HOME")
    if home:
        other = _release_in(Path(home))
        if other is not None and _numbers(other)[:2] != _numbers(installed)[:2]:
            remedy = f"unset SPARK_HOME, or pip install pyspark=={other}: both versions must match"
            return fail("spark", f"PySpark {installed}, but SPARK_HOME={home} is Spark {other}", remedy)
        return ok("spark", f"PySpark {installed}, with SPARK_HOME={home}")
    return ok("spark", f"PySpark {installed}")


def check_java(*, is_needed: bool) -> Finding:
    try:
        java = find_java()
    except HeadraceError as error:
        fact, _, remedy = str(error).partition(" Install it: ")
        if is_needed:
            return fail("java", fact, remedy)
        return warn("java", f"{fact} Only Spark needs it.", remedy)
    return ok("java", f"Java {java.version} in {java.home} ({java.origin})")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _release_in(home: Path) -> str | None:
    """Return the version of a Spark distribution, from its RELEASE file."""
    try:
        match = re.search(r"Spark (\d+\.\d+\.\d+)", (home / "RELEASE").read_text(errors="replace"))
    except OSError:
        return None
    return match[1] if match else None
