"""What mypy --strict and pyright say about a user's script: nothing about right calls, an error for each wrong one.

In RIGHT, `reveal_type(…)  # X` expects the type X. In WRONG, each line that ends with `# error` must be reported, and
no other line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple, get_type_hints

import pytest

from headrace.client.blocking import ClientOptions, ClientSettings
from headrace.config import option_types
from headrace.producer.options import PRODUCER_OPTIONS
from tools.option_types import MODULE, PARAMETERS, render

SOURCES = Path(__file__).parents[2] / "src"

RIGHT = """
from pathlib import Path
from typing import Any, Unpack, reveal_type

from collections.abc import Mapping, Sequence

from headrace import AsyncConsumer, AsyncProducer, Consumer, ConsumerInterceptor, ConsumerRecord, GroupMetadata
from headrace import MockProducer, OffsetAndMetadata, Producer, ProducerOptions, ProducerRecord
from headrace import RecordFuture, RecordMetadata, TopicPartition
from headrace.broker import EmbeddedBroker, EmbeddedCluster
from headrace.client.admin import AdminClient, NewTopic
from headrace.legacy import Producer as LegacyProducer


def on_delivery(metadata: RecordMetadata | None, error: Exception | None) -> None:
    if metadata is not None:
        reveal_type(metadata.offset)  # int | None


def connect(**options: Unpack[ProducerOptions]) -> Producer:
    return Producer({"bootstrap.servers": "broker:9092"}, **options)


def send() -> None:
    with Producer(bootstrap_servers=["a:9092", "b:9092"], linger_ms=3, acks=1, value_serializer=str.encode) as producer:
        reveal_type(producer)  # Producer
        future = producer.send("topic", b"value", key=b"key", headers={"a": b"b"}, on_delivery=on_delivery)
        reveal_type(future)  # RecordFuture
        reveal_type(future.result(timeout=5))  # RecordMetadata
        reveal_type(future.exception())  # Exception | None
        future.add_done_callback(lambda done: print(done.result().offset))
        producer.send("topic", "text", partition=0, timestamp_ms=1, headers=[("a", None)])
        reveal_type(producer.send_record(ProducerRecord("topic", b"value")))  # RecordFuture
        producer.flush(timeout=1.5)
    connect(batch_size="65536", compression_type="zstd", enable_idempotence=True, client_id=None).close()
    Producer.from_properties(Path("a.properties"), profile="2.4", linger_ms="5").close()


def send_columns(producer: Producer, table: Any) -> None:
    reveal_type(producer.send_arrow("topic", table, key="id"))  # ArrowDelivery


def transact() -> None:
    with Producer(bootstrap_servers="a:9092", transactional_id="x", transaction_timeout_ms=10_000) as producer:
        producer.init_transactions()
        with producer.transaction() as transaction:
            reveal_type(transaction)  # Producer
            transaction.send("topic", b"value")
            producer.send_offsets_to_transaction({("in", 0): 7}, GroupMetadata("group"))


async def send_async() -> None:
    async with AsyncProducer(bootstrap_servers="a:9092", linger_ms=0) as producer:
        future = await producer.send("topic", b"value")
        reveal_type(future)  # RecordFuture
        reveal_type(await future)  # RecordMetadata
        reveal_type(await producer.send_and_wait("topic", b"value", partition=1))  # RecordMetadata
        async with producer.transaction() as transaction:
            reveal_type(transaction)  # AsyncProducer


def mock() -> RecordFuture:
    producer = MockProducer(topics={"topic": 3}, auto_complete=False, max_request_size=100)
    reveal_type(producer.history[0].value)  # bytes | None
    return producer.send("topic", b"value")


class Audit(ConsumerInterceptor):
    def on_consume(self, records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
        return records[:1]

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        print(offsets[TopicPartition("topic", 0)].offset)


def consume() -> None:
    with Consumer(
        bootstrap_servers="a:9092",
        group_id="g",
        value_deserializer="avro",
        on_bad_record="null",
        interceptor_classes=[Audit()],
        metric_reporters="prometheus",
    ) as consumer:
        consumer.subscribe(["topic"])
        reveal_type(consumer.poll(1)[0])  # ConsumerRecord
        for name, value in consumer.metrics().items():
            reveal_type(name.group)  # str
            reveal_type(value)  # float | str
        reveal_type(consumer.lag(TopicPartition("topic", 0)))  # int | None
        reveal_type(consumer.committed([TopicPartition("topic", 0)]).popitem()[1])  # OffsetAndMetadata


async def consume_async(consumer: AsyncConsumer) -> None:
    reveal_type((await consumer.poll(1))[0])  # ConsumerRecord
    consumer.metrics()


def brokers() -> None:
    broker = EmbeddedBroker(num_partitions=3, in_process=True).start()
    with AdminClient(broker.bootstrap, timeout_ms=5) as admin:
        admin.create_topics([NewTopic("topic", 1)])
    EmbeddedCluster(3, auto_create_topics_enable=False, min_insync_replicas="2").close()
    LegacyProducer(metadata_broker_list="a:9092", request_required_acks=1).close()
"""

WRONG = """
from headrace import AsyncProducer, Consumer, ConsumerInterceptor, MockProducer, Producer, RecordMetadata
from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient
from headrace.legacy import Producer as LegacyProducer


def takes_one(metadata: RecordMetadata | None) -> None: ...
def takes_text(metadata: str, error: Exception | None) -> None: ...


Producer(linger_mss=3)  # error
Producer(linger_ms=[3])  # error
Producer(linger_ms=2.5)  # error
Producer(bootstrap_servers=9092)  # error
Producer(enable_idempotence=2.5)  # error
Producer.from_properties("a.properties", linger_mss=3)  # error
MockProducer(linger_mss=3)  # error
AsyncProducer(linger_mss=3)  # error
EmbeddedBroker(num_partitons=3)  # error
AdminClient("a:9092", timeout=5)  # error
AdminClient("a:9092", timeout_ms="5")  # error
LegacyProducer(metadata_brokers_list="a:9092")  # error
Consumer(group="g")  # error
Consumer(max_poll_records=[1])  # error
Consumer(bootstrap_servers="a:9092").poll(timeout="1")  # error
Consumer(bootstrap_servers="a:9092").metrics().name  # error


class Audit(ConsumerInterceptor):
    def on_commit(self, offsets: int) -> None: ...  # error


producer = Producer(bootstrap_servers="a:9092")
producer.send(b"topic")  # error
producer.send("topic", b"value", parition=0)  # error
producer.send("topic", b"value", b"key", 0)  # error
producer.send("topic", b"value", partition="0")  # error
producer.send("topic", headers={"a": 1})  # error
producer.send("topic", on_delivery=takes_one)  # error
producer.send("topic", on_delivery=takes_text)  # error
producer.send("topic").result().ofset  # error
producer.send("topic").result(timeout="5")  # error
producer.send("topic").add_done_callback(takes_text)  # error
producer.send_arrow("topic", [b"value"])  # error
producer.send_offsets_to_transaction({"in": 7}, "group")  # error
offset: int = producer.send("topic").result().offset  # error


async def send_async(producer: AsyncProducer) -> None:
    (await producer.send("topic")).ofset  # error
    await producer.send_and_wait("topic", parition=0)  # error
    await producer.send_arrow("topic", None, keys="key")  # error
    with producer.transaction():  # error
        pass
"""


class Diagnostic(NamedTuple):
    """What a type checker says about a line."""

    file: str
    line: int
    text: str
    severity: str


def run_mypy(folder: Path) -> list[Diagnostic]:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", "--no-pretty"]
    command += [
        f"--cache-dir={SOURCES.parent / '.mypy_cache' / 'user'}",
        "--hide-error-context",
        "right.py",
        "wrong.py",
    ]
    environment = {**os.environ, "MYPYPATH": str(SOURCES)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = [re.fullmatch(r"(.+?):(\d+): (\w+): (.*)", line) for line in done.stdout.splitlines()]
    return [Diagnostic(m[1], int(m[2]), m[4], m[3]) for m in lines if m is not None]


def run_pyright(folder: Path) -> list[Diagnostic]:
    if shutil.which("node") is None:
        pytest.skip("pyright needs Node.js: there is no `node` on the PATH")
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(SOURCES)], "reportUnusedExpression": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", f"--pythonpath={sys.executable}"]
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [
        Diagnostic(Path(entry["file"]).name, entry["range"]["start"]["line"] + 1, entry["message"], entry["severity"])
        for entry in json.loads(done.stdout)["generalDiagnostics"]
    ]


CHECKERS = {"mypy": run_mypy, "pyright": run_pyright}


@pytest.fixture(
    scope="module", params=[pytest.param(run, id=name, marks=pytest.mark.slow) for name, run in CHECKERS.items()]
)
def diagnostics(request, tmp_path_factory) -> list[Diagnostic]:
    """What a checker says about both scripts."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    check: Callable[[Path], list[Diagnostic]] = request.param
    return check(folder)


def test_right_calls_have_no_errors(diagnostics):
    assert [d for d in diagnostics if d.severity == "error" and d.file == "right.py"] == []


def test_wrong_calls_are_reported_each(diagnostics):
    reported = {d.line for d in diagnostics if d.severity == "error" and d.file == "wrong.py"}
    lines = WRONG.splitlines()
    assert {lines[number - 1] for number in reported} == {line for line in lines if line.endswith("# error")}


def test_results_and_context_managers_have_precise_types(diagnostics):
    for number, line in enumerate(RIGHT.splitlines(), 1):
        if "reveal_type(" in line:
            (revealed,) = (d.text for d in diagnostics if d.file == "right.py" and d.line == number)
            expected = line.rpartition("# ")[2]
            # Without the modules; mypy prints a named tuple as `tuple[str, …, fallback=module.Name]`.
            plain = re.sub(r"\b[\w.]+\.(?=\w)", "", revealed)
            assert re.search(rf"(\"|fallback=){re.escape(expected)}[\"\]]", plain), (line, revealed)


def test_the_option_types_are_up_to_date():
    assert MODULE.read_text() == render(), "run `python tools/option_types.py`"


def test_the_options_of_a_producer_are_its_keyword_arguments():
    keywords = {option.keyword for option in PRODUCER_OPTIONS.values() if option.name not in PARAMETERS}
    assert get_type_hints(option_types.ProducerOptions).keys() == keywords


def test_client_options_are_the_fields_of_client_settings():
    hints = get_type_hints(ClientSettings)
    optional = {field.name: hints[field.name] for field in fields(ClientSettings) if field.name != "bootstrap_servers"}
    assert get_type_hints(ClientOptions) == optional
