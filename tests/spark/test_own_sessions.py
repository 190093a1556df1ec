"""Sessions that users build themselves, in an environment that is not activated: `python3` lacks headrace."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.other_python import environment_without_headrace
from tests.support.topics import new_topic

pytest.importorskip("pyspark.sql")

PROCESS_SECONDS_MAX = 240

pytestmark = pytest.mark.timeout(3 * PROCESS_SECONDS_MAX)

JOB = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
if sys.argv[3:] == ["configure"]:
    from headrace.spark import configure
    builder = configure(builder)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
kafka = {"kafka.bootstrap.servers": sys.argv[1]}
rows = spark.range(0, 100, 1, 2).selectExpr("CAST(id AS STRING) AS value")
rows.write.format("headrace").options(**kafka, topic=sys.argv[2]).mode("append").save()
print(spark.read.format("headrace").options(**kafka, subscribe=sys.argv[2]).load().count())
spark.stop()
"""


@pytest.fixture(scope="module")
def inactive(tmp_path_factory):
    """Variables of a shell in which no environment is activated, and `python3` has Spark, but not headrace."""
    bare = environment_without_headrace(tmp_path_factory.mktemp("bare") / "venv")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return {**kept, "PATH": f"{bare.parent}{os.pathsep}{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}


def run(*arguments, **variables):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=PROCESS_SECONDS_MAX, env=variables
    )


@pytest.mark.behaviour("S15")
def test_a_configured_session_writes_and_reads_without_an_activated_environment(headrace_broker, inactive):
    topic = new_topic(headrace_broker, "configured", 2)
    done = run("-c", JOB, headrace_broker.bootstrap, topic, "configure", **inactive)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["100"]


@pytest.mark.behaviour("S15")
@pytest.mark.slow
def test_an_own_session_needs_pyspark_python(headrace_broker, inactive):
    topic = new_topic(headrace_broker, "own", 2)
    without = run("-c", JOB, headrace_broker.bootstrap, topic, **inactive)
    assert "DATA_SOURCE_NOT_FOUND" in without.stderr
    done = run("-c", JOB, headrace_broker.bootstrap, topic, **inactive, PYSPARK_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["100"]


def doctor(**variables):
    done = run("-m", "headrace", "doctor", "--spark", "--format", "json", **variables)
    findings = json.loads(done.stdout)["findings"]
    return done.returncode, {" ".join(finding["check"].split()[:2]): finding for finding in findings}


@pytest.mark.behaviour("S15")
@pytest.mark.slow
def test_the_doctor_names_the_interpreter_without_headrace_and_the_remedy(inactive, tmp_path):
    bare = inactive["PATH"].split(os.pathsep)[0]
    variables = {**inactive, "XDG_STATE_HOME": str(tmp_path)}
    code, findings = doctor(**variables)
    assert code == 1
    assert findings["spark session"]["status"] == "ok"
    assert f"it starts {bare}/python3, which cannot import headrace" in findings["spark format"]["found"]
    assert f"export PYSPARK_PYTHON={sys.executable}" in findings["spark format"]["remedy"]
    assert "No module named 'headrace'" in findings["spark worker"]["found"]

    code, findings = doctor(**variables, PYSPARK_PYTHON=sys.executable)
    assert code == 0, findings
    assert f"is found with {sys.executable}" in findings["spark format"]["found"]
