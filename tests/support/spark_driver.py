"""Spark drivers as separate processes, each with many queries, that tests hold, kill and replace.

SparkDriver.open → start (a query) … → ends_of (errors of the queries that have ended) → kill −9, or close
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.peers import fetched
from tests.support.peers.class_archive import archive_options, write_archive
from tests.support.peers.program import Program
from tests.support.waiting import eventually

HOST = Path(__file__).parents[1] / "spark" / "query_host.py"
OPEN_SECONDS_MAX = 120
START_SECONDS_MAX = 60
QUERY_SECONDS_MAX = 240
GONE_SECONDS_MAX = 20
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For JVMs that live for a minute on a machine with two cores: optimizing takes longer than it saves."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.executorEnv.HEADRACE_FAILPOINTS": "1",
}


def jvm_options() -> str:
    """Return the options of Spark's JVMs, with the archive of its classes."""
    import pyspark

    def write(option: str) -> None:
        script = str(Path(__file__).with_name("spark_classes.py"))
        fetched.run([sys.executable, script, " ".join((*_JVM_OPTIONS, option))], "no archive of Spark's classes")

    jars = Path(pyspark.__file__).parent / "jars"
    write_archive("spark", jars, write)
    return " ".join((*_JVM_OPTIONS, *archive_options("spark", jars)))


class SparkDriver:
    """A driver: local, or on a cluster."""

    def __init__(self, folder: Path, master: str = "local[48,3]", **settings: str) -> None:
        """The default master has many slots, because every held task takes one."""
        folder.mkdir(parents=True, exist_ok=True)
        self.local_dir = folder / "local"
        java_options = jvm_options()
        self._settings = {
            **SETTINGS,
            "spark.driver.extraJavaOptions": java_options,
            "spark.executor.extraJavaOptions": java_options,
            "spark.local.dir": str(self.local_dir),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        self._master = master
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"HEADRACE_FAILPOINTS": "1"}
        self._program = Program("a Spark driver", lambda: [sys.executable, str(HOST)], environment)
        self._jvm = self._session = 0
        self._states: dict[str, str | None] = {}

    def open(self) -> SparkDriver:
        opened = self._program("open", seconds_max=OPEN_SECONDS_MAX, master=self._master, settings=self._settings)
        self._jvm, self._session = opened["jvm"], opened["session"]
        return self

    def start(self, name: str, source: Path, checkpoint: Path, options: Mapping[str, str], tasks: int | None) -> str:
        """Start a query with a new name, and return Spark's run id."""
        self._states[name] = None
        started = self._program(
            "start",
            seconds_max=START_SECONDS_MAX,
            name=name,
            source=str(source),
            checkpoint=str(checkpoint),
            options=dict(options),
            tasks=tasks,
        )
        return str(started["run"])

    def stream(
        self,
        name: str,
        source: Mapping[str, str],
        columns: Sequence[str],
        checkpoint: Path,
        options: Mapping[str, str],
        tasks: int | None = None,
    ) -> None:
        """Start a query that runs until it is stopped. It replaces an earlier one of the same name."""
        self._states[name] = None
        self._program(
            "stream",
            seconds_max=START_SECONDS_MAX,
            name=name,
            source=dict(source),
            columns=list(columns),
            checkpoint=str(checkpoint),
            options=dict(options),
            tasks=tasks,
        )

    def stop(self, name: str) -> None:
        """Stop a query, and return when it has ended."""
        self._program("stop", seconds_max=QUERY_SECONDS_MAX, name=name)

    def python_workers(self, module: str) -> list[int]:
        """Return the process ids of the Python workers that run this module of PySpark, without their daemon."""
        commands = dict(self._processes())
        daemons = [pid for pid, command in commands.items() if command.endswith(f"-m pyspark.daemon {module}")]
        return [pid for pid in commands if _parent(pid) in daemons]

    def end_of(self, name: str) -> str | None:
        """Return None while a query runs, an empty text when it has succeeded, else its error."""
        if self._states[name] is None:
            self._states |= self._program("states", seconds_max=START_SECONDS_MAX)
        return self._states[name]

    def ends_of(self, names: Collection[str]) -> dict[str, str]:
        """Wait until these queries have ended; return their errors, or empty texts."""
        eventually(
            f"the end of {', '.join(names)}",
            lambda: all(self.end_of(name) is not None for name in names),
            QUERY_SECONDS_MAX,
        )
        return {name: self.end_of(name) or "" for name in names}

    def stage_retries(self, name: str) -> int:
        """Return the number of stage retries of a query."""
        return int(self._program("retries", seconds_max=START_SECONDS_MAX, name=name)["count"])

    def kill(self) -> None:
        """Kill the JVM with SIGKILL, then the processes that would outlive it for a moment."""
        with suppress(ProcessLookupError):
            os.kill(self._jvm, signal.SIGKILL)
        kill_all([pid for pid, _ in self._processes()])
        self._program.close()

    def close(self) -> None:
        """Close the driver, and kill processes that do not end."""
        pids = [pid for pid, _ in self._processes()]
        self._program.close()
        with suppress(TimeoutError):
            eventually("the end of a driver", lambda: not any(map(_is_alive, pids)), GONE_SECONDS_MAX)
        kill_all(pid for pid in pids if _is_alive(pid))

    def _processes(self) -> Iterator[tuple[int, str]]:
        """Yield the process ids and command lines of this driver's session."""
        for pid, command in processes() if self._session else ():
            with suppress(ProcessLookupError):
                if os.getsid(pid) == self._session:
                    yield pid, command


def processes() -> Iterator[tuple[int, str]]:
    """Yield the process ids and command lines of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield int(path.parent.name), path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
