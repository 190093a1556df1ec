"""Kafka's jars from Maven, once: later runs find them in the cache folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[3] / ".cache"
DOWNLOAD_SECONDS_MAX = 900

# slf4j-simple prints to stderr at the level that a system property says, with any version of Kafka; what some
# versions bring along instead wants a file of configuration.
_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>none</groupId><artifactId>none</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version>
      <exclusions><exclusion><groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId></exclusion></exclusions>
    </dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version>
      <exclusions><exclusion><groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId></exclusion></exclusions>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""


def jars_folder(version: str) -> Path:
    """Where the jars of a version lie, or will."""
    return CACHE / f"kafka-{version}"


def kafka_jars(version: str) -> Path:
    """The folder with the jars of Kafka's broker, clients and tools; without Java or Maven the test is skipped."""
    folder = jars_folder(version)
    require("java", "javac")
    if not folder.exists():
        require("mvn")
        CACHE.mkdir(exist_ok=True)
        with _only_one_run(CACHE / "kafka.lock"):
            if not folder.exists():
                _download(version, folder)
    return folder


def require(*programs: str) -> None:
    """Skip the test if a program is missing; where nothing may be missing (CI=true), fail it."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        reason = f"no {' and no '.join(missing)} on the PATH, which tests against real Kafka need"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def _download(version: str, folder: Path) -> None:
    for left_over in CACHE.glob("kafka-*.partial"):  # of a run that was killed: we hold the lock
        shutil.rmtree(left_over)
    partial = folder.with_name(folder.name + ".partial")
    with tempfile.TemporaryDirectory() as project:
        Path(project, "pom.xml").write_text(_POM.format(version=version))
        done = subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={partial}"],
            cwd=project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DOWNLOAD_SECONDS_MAX,
        )
    if done.returncode:
        raise RuntimeError(f"Maven could not fetch Kafka {version}:\n{done.stdout[-4000:]}")
    partial.rename(folder)


@contextmanager
def _only_one_run(path: Path) -> Iterator[None]:
    """Held by one process at a time; the system lets go of it when that process dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
