"""Spark's own Kafka connector, with its version of Spark in a separate environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.peers import fetched, maven
from tests.support.peers.program import Program

SOURCE = Path(__file__).parents[2] / "either" / "clients" / "spark" / "reader.py"
SPARK_VERSION = "4.2.0"

# 4.2.0 depends on a token provider that does not exist in that version; that of 4.0.0 works.
_JARS = {
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13"): SPARK_VERSION,
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13"): "4.0.0",
    ("org.apache.kafka", "kafka-clients"): "3.9.0",
    ("org.apache.commons", "commons-pool2"): "2.12.0",
}
# Without dependencies: they are part of Spark.
_DEPENDENCY = """\
    <dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
"""


def make_spark_connector() -> Program:
    """Spark, started with the first command; without Java the test is skipped."""
    jars, environment = installed()
    python = environment / "bin" / "python"
    paths = ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))
    variables = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    variables |= {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    return Program("Spark", lambda: [str(python), str(SOURCE), paths], variables)


def installed() -> tuple[Path, Path]:
    """The folder of the connector's jars, and the environment with its Spark; fetched if they are not there yet."""
    fetched.require("java", purpose="tests with Spark")
    jars = fetched.fetched(f"sparkjars-{SPARK_VERSION}", _fetch_jars)
    return jars, fetched.fetched(f"pyspark-{SPARK_VERSION}", _install)


def is_installed() -> bool:
    """Return whether it is downloaded already."""
    return all((fetched.CACHE / f"{kind}-{SPARK_VERSION}").exists() for kind in ("sparkjars", "pyspark"))


def _fetch_jars(folder: Path) -> None:
    dependencies = [
        _DEPENDENCY.format(group=group, name=name, version=version) for (group, name), version in _JARS.items()
    ]
    maven.copy_jars("Spark's Kafka connector", "".join(dependencies), folder)


def _install(folder: Path) -> None:
    # An environment can be moved if it is used by the path of its Python only.
    fetched.run([sys.executable, "-m", "venv", str(folder)], "no environment for Spark")
    fetched.run(
        [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", f"pyspark=={SPARK_VERSION}"], "no PySpark"
    )
