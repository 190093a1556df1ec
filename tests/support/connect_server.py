"""A Spark Connect server from pip's pyspark, as a process on the loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self

import pyspark

from tests.support.peers.real_kafka import GUARD, free_ports
from tests.support.spark_driver import kill_all, processes
from tests.support.waiting import eventually

START_SECONDS_MAX = 90
STOP_SECONDS_MAX = 10
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """Its Python workers run with `python`."""

    def __init__(self, folder: Path, python: str) -> None:
        self._folder = folder
        self._python = python
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        home = Path(pyspark.__file__).parent
        settings = {
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
        }
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        with (self._folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*GUARD, str(home / "bin" / "spark-submit"), "--class", _CLASS, *options, "spark-internal"],
                cwd=self._folder,
                env=self._environment(home),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            eventually("the Spark Connect server", self._listens, START_SECONDS_MAX)
        except TimeoutError as error:
            self.close()
            raise TimeoutError(f"{error}; its log ends:\n{self.log_tail()}") from None
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGKILL)
        kill_all([pid for pid, _ in processes() if _session(pid) == process.pid])
        process.wait(STOP_SECONDS_MAX)
        assert process.stdin is not None
        process.stdin.close()

    def log_tail(self, bytes_max: int = 3000) -> str:
        return (self._folder / "server.log").read_bytes()[-bytes_max:].decode(errors="replace")

    def _environment(self, home: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
        here = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONNECT_MODE": "0"}
        return {**kept, **here, "PYSPARK_PYTHON": self._python}

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the Spark Connect server has ended:\n{self.log_tail()}"
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
