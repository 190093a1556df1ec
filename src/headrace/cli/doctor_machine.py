"""The part of `headrace doctor` that looks at this machine: Python, kernel, pyarrow, Java, Spark, the broker of ours.

Nothing here connects anywhere, and nothing is imported that can be asked for its version without.
"""

from __future__ import annotations

import importlib
import logging
import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import headrace
from headrace.cli.findings import Finding, fail, ok, warn
from headrace.errors import HeadraceError

PYTHON_MIN = (3, 11)
PYARROW_MIN = (15,)
PYSPARK_MIN = (4, 0)
CODECS = ("gzip", "snappy", "lz4", "zstd")
"""Kafka's, all of which come from pyarrow."""


def check_machine() -> Iterator[Finding]:
    """All of it, in the order in which one thing needs another."""
    yield check_python()
    yield check_kernel()
    yield check_pyarrow()
    spark = check_pyspark()
    yield spark
    yield check_java(is_needed=find_spec("pyspark") is not None)


def check_python() -> Finding:
    found = f"Python {platform.python_version()}, headrace {headrace.__version__} in {Path(headrace.__file__).parent}"
    if sys.version_info < PYTHON_MIN:
        return fail("python", found, f"install Python {'.'.join(map(str, PYTHON_MIN))} or newer")
    return ok("python", found)


def check_kernel() -> Finding:
    """Which of the two kernels is used, and why."""
    wanted = os.environ.get("HEADRACE_KERNEL", "")
    logger = logging.getLogger("headrace")
    before = logger.level
    logger.setLevel(logging.ERROR)  # the kernel's own warning says the same
    try:
        name = importlib.import_module("headrace.wire.kernel").KERNEL_NAME
    except HeadraceError as error:
        return fail("kernel", str(error), "unset HEADRACE_KERNEL, or install a C compiler and then headrace again")
    finally:
        logger.setLevel(before)
    if name == "compiled":
        return ok("kernel", "compiled")
    if wanted:
        return warn("kernel", "Python's own, because HEADRACE_KERNEL=python asks for it", "unset HEADRACE_KERNEL")
    return warn(
        "kernel",
        f"Python's own, 20 to 100 times slower: the compiled one does not load ({_why_not_compiled()})",
        "install a C compiler (Debian: apt install gcc python3-dev), then pip install --force-reinstall "
        "--no-binary headrace headrace",
    )


def _why_not_compiled() -> str:
    try:
        importlib.import_module("headrace.wire._kernel")
    except ImportError as error:
        return str(error)
    return "unknown"


def check_pyarrow() -> Finding:
    try:
        import pyarrow as pa
    except ImportError as error:
        return fail("pyarrow", f"it cannot be imported: {error}", "pip install --force-reinstall pyarrow")
    missing = [codec for codec in CODECS if not pa.Codec.is_available(codec)]
    if _numbers(pa.__version__) < PYARROW_MIN:
        return fail("pyarrow", f"pyarrow {pa.__version__}", f"pip install 'pyarrow>={PYARROW_MIN[0]}'")
    if missing:
        remedy = "topics with these codecs cannot be read or written: install pyarrow from a wheel of PyPI"
        return warn("pyarrow", f"pyarrow {pa.__version__} without {', '.join(missing)}", remedy)
    return ok("pyarrow", f"pyarrow {pa.__version__} with {', '.join(CODECS)}")


def check_pyspark() -> Finding:
    """Whether `format("headrace")` would be found, by versions alone: `--spark` tries it out."""
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        return warn("spark", "PySpark is not installed", "for Spark: pip install 'headrace[spark]'")
    needed = ".".join(map(str, PYSPARK_MIN))
    if _numbers(installed) < PYSPARK_MIN:
        remedy = f"pip install 'pyspark>={needed}': older ones have no data sources in Python"
        return fail("spark", f"PySpark {installed}", remedy)
    if find_spec("pyspark_headrace") is None:
        remedy = "install headrace again: the package pyspark_headrace belongs to it"
        return fail("spark", f"PySpark {installed}, which cannot find headrace by name", remedy)
    home = os.environ.get("SPARK_HOME")
    if home:
        other = _release_in(Path(home))
        if other is not None and _numbers(other)[:2] != _numbers(installed)[:2]:
            remedy = f"unset SPARK_HOME, or pip install pyspark=={other}: both sides have to be of one version"
            return fail("spark", f"PySpark {installed}, but SPARK_HOME={home} is Spark {other}", remedy)
        return ok("spark", f"PySpark {installed}, with SPARK_HOME={home}")
    return ok("spark", f"PySpark {installed}")


def check_java(*, is_needed: bool) -> Finding:
    from headrace.spark.local_session import find_java

    try:
        java = find_java()
    except HeadraceError as error:
        fact, _, remedy = str(error).partition(" Install one: ")
        if is_needed:
            return fail("java", fact, remedy)
        return warn("java", f"{fact} Only Spark needs it.", remedy)
    return ok("java", f"Java {java.version} in {java.home} ({java.origin})")


def check_spark_runs() -> Finding:
    """Start a session, and let a worker of it import headrace."""
    from headrace.spark.local_session import check_workers, session

    try:
        spark = session("headrace doctor", "local[1]", log_level="OFF")
        try:
            check_workers(spark)
            return ok("spark session", f"Spark {spark.version} starts, and its workers import headrace")
        finally:
            spark.stop()
    except HeadraceError as error:
        return fail("spark session", str(error), "see the lines on java and spark; --debug shows Spark's own log")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _release_in(home: Path) -> str | None:
    """The version of a Spark distribution, from the file RELEASE that it comes with."""
    try:
        found = re.search(r"Spark (\d+\.\d+\.\d+)", (home / "RELEASE").read_text(errors="replace"))
    except OSError:
        return None
    return found[1] if found else None
