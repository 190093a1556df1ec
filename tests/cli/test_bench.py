"""headrace bench: the producer benchmark, and those that need the source tree."""

from __future__ import annotations

from headrace.client.admin import AdminClient
from tests.support.cli_runner import facts, refused, run_cli
from tests.support.topics import new_topic

SMALL = ("--records", 2000, "--rounds", 2, "--rate", 2000)


def test_the_producer_is_measured_on_a_temporary_topic(headrace_broker, monkeypatch):
    monkeypatch.setattr("headrace.cli.bench.LATENCY_SECONDS", 0.2)
    result = facts("bench", "producer", *SMALL, "-b", headrace_broker.bootstrap)
    assert (result["records"], result["value_bytes"], result["rounds"]) == (2000, 100, 2)
    assert result["records_per_s"] > 0
    assert result["mb_per_s"] == result["records_per_s"] * 100 / 1e6
    assert result["cpu_us_per_record"] > 0
    assert list(result["latency_ms"]) == ["50", "95", "99", "99.9"]
    latencies = list(result["latency_ms"].values())
    assert latencies == sorted(latencies)
    with AdminClient(headrace_broker.bootstrap) as admin:
        assert not [name for name in admin.list_topics() if name.startswith("headrace-bench-")]


def test_an_existing_topic_is_kept(headrace_broker, monkeypatch):
    monkeypatch.setattr("headrace.cli.bench.LATENCY_SECONDS", 0.1)
    topic = new_topic(headrace_broker, "bench")
    done = run_cli("bench", "producer", *SMALL, "--topic", topic, "-b", headrace_broker.bootstrap)
    assert done.exit_code == 0, done.output
    assert "round 2 of 2" in done.stderr
    assert "records/s" in done.stdout
    with AdminClient(headrace_broker.bootstrap) as admin:
        assert topic in admin.list_topics()


def test_a_missing_source_tree_is_reported_with_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr("headrace.__file__", str(tmp_path / "lib" / "headrace" / "__init__.py"))
    for command in (("wire",), ("broker",), ("spark",), ("producer", "--compare")):
        message = refused(1, "bench", *command)
        assert "needs the source tree" in message
        assert f"make bench-{command[0]}" in message
