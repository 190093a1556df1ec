"""headrace bench: the producer's own measurement, and what needs the source tree."""

from __future__ import annotations

from headrace.client.admin import AdminClient
from typed import facts, refused, typed

SMALL = ("--records", 2000, "--rounds", 2, "--rate", 2000)


def test_the_producer_is_measured_and_its_topic_is_gone_afterwards(headrace_broker, monkeypatch):
    monkeypatch.setattr("headrace.cli.bench.LATENCY_SECONDS", 0.2)
    found = facts("bench", "producer", *SMALL, "-b", headrace_broker.bootstrap)
    assert (found["records"], found["value_bytes"], found["rounds"]) == (2000, 100, 2)
    assert found["records_per_s"] > 0
    assert found["mb_per_s"] == found["records_per_s"] * 100 / 1e6
    assert found["cpu_us_per_record"] > 0
    assert list(found["latency_ms"]) == ["50", "95", "99", "99.9"]
    latencies = list(found["latency_ms"].values())
    assert latencies == sorted(latencies)
    with AdminClient(headrace_broker.bootstrap) as admin:
        assert not [name for name in admin.list_topics() if name.startswith("headrace-bench-")]


def test_a_topic_of_ones_own_is_filled_and_left(headrace_broker, monkeypatch):
    from topics import new_topic

    monkeypatch.setattr("headrace.cli.bench.LATENCY_SECONDS", 0.1)
    topic = new_topic(headrace_broker, "bench")
    done = typed("bench", "producer", *SMALL, "--topic", topic, "-b", headrace_broker.bootstrap)
    assert done.exit_code == 0, done.output
    assert "round 2 of 2" in done.stderr
    assert "records/s" in done.stdout
    with AdminClient(headrace_broker.bootstrap) as admin:
        assert topic in admin.list_topics()


def test_without_the_source_tree_it_says_where_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr("headrace.__file__", str(tmp_path / "lib" / "headrace" / "__init__.py"))
    for command in (("wire",), ("broker",), ("spark",), ("producer", "--compare")):
        said = refused(1, "bench", *command)
        assert "needs the source tree" in said
        assert f"make bench-{command[0]}" in said
