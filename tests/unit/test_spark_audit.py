"""The report of an audit, and the usage of the command. Without Spark: see tests/spark/test_audit.py for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.cli import audit as audit_command
from headrace.errors import ConfigError
from headrace.spark import audit
from headrace.spark.auditing import PREFIX_BYTES_MAX, AuditReport, Example, Record, _text
from headrace.spark.consumer_options import reading_options
from headrace.spark.errors import SparkError
from tests.support.cli_runner import run_cli

NO_FRAME: Any = None
EQUAL = AuditReport(10, 10, 10, 0, 0, 0)


def test_a_report_is_true_if_all_is_well():
    assert EQUAL
    assert AuditReport(10, 10, 10, 0, 0, 0, out_of_order=0)
    for field in ("lost", "duplicated", "unexpected", "out_of_order"):
        changes: dict[str, Any] = {field: 1}
        assert not replace(EQUAL, **changes)


def test_a_report_as_json():
    example = Example("k", "v", (Record("t", 0, 5),))
    report = AuditReport(1, 2, 1, 0, 1, 0, examples={"duplicated": (example,)})
    assert report.to_json() == {
        "equal": False,
        "source_rows": 1,
        "topic_rows": 2,
        "matched": 1,
        "lost": 0,
        "duplicated": 1,
        "unexpected": 0,
        "examples": {
            "duplicated": [{"key": "k", "value": "v", "records": [{"topic": "t", "partition": 0, "offset": 5}]}]
        },
    }


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, None),
        (b"", ""),
        (bytearray(b"abc"), "abc"),
        (b"\xff\x00", "\\xff\x00"),
        (b"x" * PREFIX_BYTES_MAX, "x" * PREFIX_BYTES_MAX + "…"),
        (b"x" * (PREFIX_BYTES_MAX - 1) + "ü".encode()[:1], "x" * (PREFIX_BYTES_MAX - 1) + "…"),
        (b"\xff" * PREFIX_BYTES_MAX, "\\xff" * PREFIX_BYTES_MAX),
    ],
)
def test_bytes_for_people(data, text):
    assert _text(data) == text


def test_of_a_sinks_options_only_those_that_reach_the_cluster_are_for_reading():
    given = {
        "kafka.bootstrap.servers": "b:1",
        "kafka.Security.Protocol": "SSL",
        "kafka.linger.ms": "5",
        "topic": "t",
        "sink.id": "s",
    }
    assert reading_options(given) == {"kafka.bootstrap.servers": "b:1", "kafka.security.protocol": "SSL"}


def test_too_many_examples_are_refused():
    with pytest.raises(ConfigError, match="examples is 5000; it may be 0 to 1000"):
        audit(NO_FRAME, "t", examples=5000)


SOURCE = ("--source-format", "parquet", "--source-path", "x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no source: pass --pipeline FILE or --source-format NAME"),
        (SOURCE, "no topic: pass --topic NAME"),
        ((*SOURCE, "--topic", "t"), "no bootstrap servers: pass -b HOST:PORT"),
        ((*SOURCE, "--topic-option", "x", "--topic", "t"), "invalid --topic-option: expected KEY=VALUE, got 'x'"),
        ((*SOURCE, "-X", "a.b=c"), "-X overrides a value of a pipeline file: it requires --pipeline FILE"),
        (("--pipeline", __file__, *SOURCE), "--source-format and --pipeline are mutually exclusive"),
        (("--pipeline", __file__), "is not TOML"),
        (("--examples", "-1"), "-1"),
    ],
)
def test_invalid_usage_exits_with_2(arguments, message):
    done = run_cli("audit", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


@pytest.fixture
def outcome(monkeypatch):
    """Run the command with a given report or error."""

    def invoke(result, *arguments):
        def audited(given, debug):
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr(audit_command, "_run_audit", audited)
        return run_cli("audit", *arguments)

    return invoke


def test_exit_codes(outcome):
    assert outcome(EQUAL).exit_code == 0
    assert outcome(AuditReport(1, 0, 0, 1, 0, 0)).exit_code == 1
    failed = outcome(SparkError("no broker"))
    assert (failed.exit_code, failed.output) == (2, "Error: no broker\n")
    assert outcome(KeyboardInterrupt()).exit_code == 130


def test_a_table_for_people(outcome):
    examples = {
        "lost": (Example("k1", "v1"),),
        "out_of_order": (Example("k2", "v2", (Record("t", 1, 7),), "3"),),
    }
    done = outcome(AuditReport(1_000_000, 999_999, 999_999, 1, 0, 0, 1, examples))
    assert done.output == (
        "different\n"
        "  source rows        1,000,000\n"
        "  topic rows           999,999\n"
        "  matched              999,999\n"
        "  lost                       1\n"
        "  duplicated                 0\n"
        "  unexpected                 0\n"
        "  out of order               1\n"
        "lost: key='k1' value='v1'\n"
        "out of order: key='k2' value='v2' order=3 (t-1 at 7)\n"
    )
