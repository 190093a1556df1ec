"""A Spark session that is ready for `format("headrace")`: Java, interpreter, package and settings.

    find Java → environment (JAVA_HOME, PYSPARK_PYTHON, PYTHONPATH) → settings → SparkSession → are the workers ready?

What has to be there before a JVM starts is set here, and only if none runs yet: a session that exists already is
taken as it is. (The module is not called `session`, because `headrace.spark.session` is the function.)
"""

from __future__ import annotations

import logging
import os
import site
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import headrace
from headrace.spark.java import Java, find_java, launcher
from headrace.spark.spark_errors import SparkError, explain

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
