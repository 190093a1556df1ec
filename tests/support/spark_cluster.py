"""A Spark standalone cluster from pip's pyspark: a master and workers, each a process on the loopback.

Each worker has another address (127.0.0.2, 127.0.0.3), so that Spark takes them for different hosts: it does not start
a speculative attempt on the host of the first attempt.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pyspark

from tests.support.peers.real_kafka import GUARD, free_ports
from tests.support.spark_driver import kill_all, processes
from tests.support.waiting import eventually

START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 10
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
DAEMON = "pyspark.daemon"
_DEPLOY = "org.apache.spark.deploy"
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class StandaloneCluster:
    """One master and several workers."""

    def __init__(self, folder: Path, workers: int = 2, cores: int = 2) -> None:
        self._folder = folder
        self._cores = cores
        self._port, self._page_port = free_ports(2)
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._hosts = [f"127.0.0.{2 + number}" for number in range(workers)]

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    @property
    def hosts(self) -> list[str]:
        return list(self._hosts)

    def start(self) -> StandaloneCluster:
        self._folder.mkdir(parents=True, exist_ok=True)
        ports = ("--port", str(self._port), "--webui-port", str(self._page_port))
        self._master = self._run("master", "127.0.0.1", "master.Master", "--host", "127.0.0.1", *ports)
        eventually("the master of Spark", self._listens, START_SECONDS_MAX)
        for host in self._hosts:
            self._start_worker(host)
        eventually("Spark's workers", lambda: all(map(self._is_registered, self._hosts)), START_SECONDS_MAX)
        return self

    def _start_worker(self, host: str) -> None:
        arguments = ("--host", host, "--cores", str(self._cores), "--memory", "2g", "--webui-port", "0")
        folder = ("--work-dir", str(self._folder / host))
        self._workers[host] = self._run(host, host, "worker.Worker", *arguments, *folder, self.url)

    def executors(self, host: str | None = None) -> list[int]:
        """Return the process ids of executors, of all workers or of one. They are in the session of their worker."""
        workers = [self._workers[name].pid for name in ([host] if host else self._workers)]
        return [pid for pid, command in processes() if EXECUTOR in command and _session(pid) in workers]

    def python_workers(self, host: str) -> list[int]:
        """Return the process ids of the Python workers of a host; none before its first task in Python."""
        return [pid for pid, command in processes() if DAEMON in command and _session(pid) == self._workers[host].pid]

    def kill_executors(self) -> int:
        """Kill all executors with SIGKILL and return their number. The workers start new ones."""
        pids = self.executors()
        kill_all(pids)
        return len(pids)

    def kill_worker(self, host: str) -> None:
        """Kill a worker and its executors with SIGKILL. It is not restarted."""
        executors = self.executors(host)
        _end(self._workers.pop(host))
        kill_all(executors)

    def close(self) -> None:
        executors = self.executors()
        for process in [*self._workers.values(), *([self._master] if self._master else [])]:
            _end(process)
        kill_all(executors)
        self._workers.clear()
        self._master = None

    def log_tail(self, name: str = "master", bytes_max: int = 3000) -> str:
        return (self._folder / f"{name}.log").read_bytes()[-bytes_max:].decode(errors="replace")

    def _run(self, name: str, host: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self._folder / f"local-{host}"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JVM,
        }
        with (self._folder / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                [*GUARD, str(home / "bin" / "spark-class"), f"{_DEPLOY}.{main}", *arguments],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True

    def _is_registered(self, host: str) -> bool:
        return "Successfully registered with master" in (self._folder / f"{host}.log").read_text(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its guard."""
    process.send_signal(signal.SIGKILL)
    kill_all([pid for pid, _ in processes() if _session(pid) == process.pid])
    process.wait(STOP_SECONDS_MAX)
    assert process.stdin is not None
    process.stdin.close()


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
