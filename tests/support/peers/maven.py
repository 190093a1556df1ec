"""Jars from Maven, kept in the cache folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.peers import fetched
from tests.support.peers.fetched import DOWNLOAD_SECONDS_MAX, require

__all__ = ["CACHE", "DOWNLOAD_SECONDS_MAX", "copy_jars", "jars_folder", "kafka_jars"]

CACHE = fetched.CACHE

# slf4j-simple prints to stderr at the level of a system property, with any version of Kafka; the loggers that some
# versions depend on need a configuration file.
_KAFKA = """\
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version>
      <exclusions><exclusion><groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId></exclusion></exclusions>
    </dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version>
      <exclusions><exclusion><groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId></exclusion></exclusions>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
"""
_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>none</groupId><artifactId>none</artifactId><version>1</version>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""


def jars_folder(version: str) -> Path:
    """Return the folder for the jars of a version."""
    return CACHE / f"kafka-{version}"


def kafka_jars(version: str) -> Path:
    """The folder with the jars of Kafka's broker, clients and tools; without Java or Maven the test is skipped."""
    require("java", "javac")
    dependencies = _KAFKA.format(version=version)
    return fetched.fetched(
        jars_folder(version).name, lambda folder: copy_jars(f"Kafka {version}", dependencies, folder), cache=CACHE
    )


def copy_jars(what: str, dependencies: str, folder: Path) -> None:
    """Fetch the jars of some `<dependency>` elements, and of what these depend on, into a folder."""
    require("mvn")
    with tempfile.TemporaryDirectory() as project:
        Path(project, "pom.xml").write_text(_POM.format(dependencies=dependencies))
        fetched.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"],
            f"Maven could not fetch {what}",
            cwd=Path(project),
        )
