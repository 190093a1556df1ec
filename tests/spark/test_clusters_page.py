"""docs/clusters.md: its programs on a standalone cluster, on a Spark Connect server, and as a declarative pipeline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.client.fetcher import Fetcher
from headrace.types import TopicPartition
from tests.support.connect_server import ConnectServer
from tests.support.doc_pages import PROJECT, files_of
from tests.support.other_python import copy_headrace, environment_without_headrace, packed_environment
from tests.support.spark_cluster import StandaloneCluster
from tests.support.topics import new_topic, unique

pyspark = pytest.importorskip("pyspark")

PAGE = PROJECT / "docs" / "clusters.md"
PROCESS_SECONDS_MAX = 200
ROWS = 1000
SETTINGS = """\
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.driver.memory 1g
spark.executor.memory 768m
spark.ui.enabled false
"""

pytestmark = [pytest.mark.timeout(5 * PROCESS_SECONDS_MAX), pytest.mark.slow]


class Page:
    """The programs of the page, with topics of a broker in place of those that they name."""

    def __init__(self, broker, folder):
        self._broker = broker
        self.folder = folder
        self.orders, self.copies = new_topic(broker, "orders", 2), new_topic(broker, "copies", 2)
        self._replaced = {
            "localhost:9092": broker.bootstrap,
            '"orders"': f'"{self.orders}"',
            '"copies"': f'"{self.copies}"',
            '"orders-1"': f'"{unique("write")}"',
            "orders-pipeline": unique("orders-pipeline"),
            "/var/lib/orders": str(folder / "storage"),
        }
        (folder / "conf").mkdir(parents=True)
        (folder / "conf" / "spark-defaults.conf").write_text(SETTINGS)

    def write(self, name, **replaced):
        """Write a program of the page into the folder, and return its name."""
        text = files_of(PAGE)[name]
        for old, new in {
            **self._replaced,
            **{key.replace("__", "."): value for key, value in replaced.items()},
        }.items():
            text = text.replace(old, new)
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(text)
        return name

    def run(self, *command, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
        here = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(self.folder / "conf")}
        return subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env={**kept, **here, **variables},
            capture_output=True,
            text=True,
            timeout=PROCESS_SECONDS_MAX,
        )

    def send(self, count):
        with headrace.Producer(bootstrap_servers=self._broker.bootstrap) as producer:
            for number in range(count):
                producer.send(self.orders, str(number).encode(), key=str(number % 10).encode())

    def copied(self):
        """Return the committed values of the topic copies, sorted."""
        partitions = [TopicPartition(self.copies, number) for number in range(2)]
        values = []
        with Fetcher(self._broker.bootstrap) as fetcher:
            fetcher.assign(partitions, until=fetcher.end_offsets(partitions))
            while not fetcher.is_finished():
                values += [int(record.value or b"") for record in fetcher.poll(timeout_ms=1000)]
        return sorted(values)


def last_line(done):
    """Return the last line that a program has printed. Spark may print warnings before it."""
    return "".join(done.stdout.splitlines()[-1:])


@pytest.fixture
def page(headrace_broker, tmp_path):
    return Page(headrace_broker, tmp_path / "page")


@pytest.fixture
def cluster(tmp_path):
    standalone = StandaloneCluster(tmp_path / "cluster", workers=1)
    try:
        yield standalone.start()
    finally:
        standalone.close()


@pytest.mark.behaviour("S15")
def test_workers_of_a_cluster_without_headrace_and_with_a_shipped_environment(cluster, page):
    bare = environment_without_headrace(page.folder / "bare")
    archives = 'builder = builder.config("spark.archives", "environment.tar.gz#environment")\n'
    assert archives in files_of(PAGE)["job.py"]

    page.write("job.py", **{"spark://master:7077": cluster.url, archives: ""})
    done = page.run(sys.executable, "job.py", PYSPARK_PYTHON=str(bare))
    assert done.returncode != 0
    for part in ("ImportError: the worker ", str(bare), "No module named 'headrace'", "ship it with the job"):
        assert part in done.stderr, done.stderr[-3000:]

    packed_environment(page.folder / "packed", page.folder / "environment.tar.gz")
    page.write("job.py", **{"spark://master:7077": cluster.url})
    done = page.run(sys.executable, "job.py", PYSPARK_PYTHON="./environment/bin/python")
    assert last_line(done) == f"{ROWS} records", done.stderr[-3000:]

    page.write("job.py", **{"spark://master:7077": cluster.url, archives: ""})
    submit = (Path(sys.executable).parent / "spark-submit", "--master", cluster.url)
    interpreters = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": "./environment/bin/python"}
    done = page.run(*submit, "--archives", "environment.tar.gz#environment", "job.py", **interpreters)
    assert last_line(done) == f"{ROWS} records", done.stderr[-3000:]  # the same write.id

    (page.folder / "lib").mkdir()
    copy_headrace(page.folder / "lib")
    shutil.make_archive(str(page.folder / "lib"), "gztar", page.folder / "lib")
    package = ("--archives", "lib.tar.gz#lib", "--conf", "spark.executorEnv.PYTHONPATH=./lib")
    done = page.run(*submit, *package, "job.py", **{**interpreters, "PYSPARK_PYTHON": str(bare)})
    assert last_line(done) == f"{ROWS} records", done.stderr[-3000:]


@pytest.mark.behaviour("S15")
def test_batch_stream_and_source_with_spark_connect(page, tmp_path):
    """The client has PySpark only."""
    pytest.importorskip("grpc")
    client = environment_without_headrace(page.folder / "bare")
    with ConnectServer(tmp_path / "server", sys.executable) as server:
        page.write("connect_job.py", **{"sc://localhost:15002": server.url})
        done = page.run(client, "connect_job.py")
        assert last_line(done) == f"{ROWS} records", f"{done.stderr[-3000:]}\n{server.log_tail()}"
    assert page.copied() == [*range(ROWS)]


@pytest.mark.behaviour("S15")
def test_an_artifact_of_a_spark_connect_session_is_enough_for_batches(page, tmp_path):
    """The server does not have headrace, the client does."""
    pytest.importorskip("grpc")
    (tmp_path / "lib").mkdir()
    copy_headrace(tmp_path / "lib")
    shutil.make_archive(str(page.folder / "headrace"), "zip", tmp_path / "lib")
    with ConnectServer(tmp_path / "server", str(environment_without_headrace(tmp_path / "bare"))) as server:
        page.write("artifact_job.py", **{"sc://localhost:15002": server.url})
        done = page.run(sys.executable, "artifact_job.py")
        assert last_line(done) == f"{ROWS} records", f"{done.stderr[-3000:]}\n{server.log_tail()}"


def pipelines(page, *arguments):
    program = Path(sys.executable).parent / "spark-pipelines"
    variables = {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    done = page.run(program, "run", "--spec", "spark-pipeline.yml", *arguments, **variables)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.behaviour("S15")
def test_a_declarative_pipeline_delivers_what_is_new_and_all_again_in_a_full_refresh(page):
    pytest.importorskip("grpc")
    page.write("spark-pipeline.yml")
    page.write("transformations/deliver.py")
    page.send(10)
    pipelines(page)
    assert page.copied() == [*range(10)]
    page.send(5)
    pipelines(page)
    assert page.copied() == sorted([*range(10), *range(5)])
    pipelines(page, "--full-refresh-all")
    assert page.copied() == sorted([*range(10), *range(5)] * 2)


@pytest.mark.behaviour("S15")
def test_with_source_offsets_a_full_refresh_delivers_nothing_again(page):
    pytest.importorskip("grpc")
    page.write("spark-pipeline.yml")
    page.write("transformations/deliver_once.py")
    page.send(10)
    pipelines(page)
    assert page.copied() == [*range(10)]
    page.send(5)
    pipelines(page, "--full-refresh-all")
    assert page.copied() == sorted([*range(10), *range(5)])
