"""The catalog: what was recorded is there after a restart, whole events or none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.catalog import Catalog
from headrace.broker.catalog.configs import BROKER, TOPIC
from headrace.broker.catalog.journal import SPARE_LINES_MAX
from headrace.broker.catalog.topics import PartitionPlace, check_name
from headrace.errors import BrokerError, Code


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog"


def reopened(catalog: Catalog, path: Path) -> Catalog:
    catalog.close()
    return Catalog(path)


def test_everything_recorded_is_there_after_a_restart(path: Path) -> None:
    catalog = Catalog(path)
    catalog.record(catalog.topics.creation("orders", [[1], [1]]), catalog.topics.creation("gone", [[1]]))
    orders = catalog.topics.by_name["orders"]
    catalog.record(catalog.topics.growth(orders, [[1, 2]]))
    catalog.record(catalog.topics.move(orders, 0, PartitionPlace((1, 2), (2,), 2, 5)))
    catalog.record(catalog.topics.deletion(catalog.topics.by_name["gone"]))
    catalog.record(catalog.configs.change(TOPIC, "orders", {"retention.ms": "5", "segment.ms": "6"}))
    catalog.record(catalog.configs.change(TOPIC, "orders", {"retention.ms": None}))
    catalog.record(catalog.identity.reserve_producer_ids())

    again = reopened(catalog, path)

    assert again.topics.by_name == catalog.topics.by_name
    assert again.topics.by_id == {orders.id: again.topics.by_name["orders"]}
    assert again.topics.by_name["orders"].partitions[0] == PartitionPlace((1, 2), (2,), 2, 5)
    assert again.configs.of(TOPIC, "orders") == {"segment.ms": "6"}
    assert again.configs.of(BROKER, "1") == {}
    assert again.identity.cluster_id == catalog.identity.cluster_id
    assert again.identity.next_producer_id == 1000


def test_a_torn_last_line_is_cut_off_and_what_is_recorded_next_survives(path: Path) -> None:
    catalog = Catalog(path)
    catalog.record(catalog.topics.creation("whole", [[1]]))
    before = path.stat().st_size
    catalog.record(catalog.topics.creation("torn", [[1]]), catalog.topics.creation("torn-too", [[1]]))
    catalog.close()
    whole = path.read_bytes()

    for kept in range(before, len(whole)):
        path.write_bytes(whole[:kept])
        damaged = Catalog(path)
        assert set(damaged.topics.by_name) == {"whole"}, kept
        damaged.record(damaged.topics.creation("next", [[1]]))
        damaged = reopened(damaged, path)
        assert set(damaged.topics.by_name) == {"whole", "next"}
        damaged.close()


def test_a_line_whose_checksum_is_wrong_ends_the_journal(path: Path) -> None:
    catalog = Catalog(path)
    catalog.record(catalog.topics.creation("kept", [[1]]))
    size = path.stat().st_size
    catalog.record(catalog.topics.creation("flipped", [[1]]))
    catalog.close()
    data = bytearray(path.read_bytes())
    data[size + 20] ^= 1
    path.write_bytes(data)

    assert set(Catalog(path).topics.by_name) == {"kept"}


def test_a_journal_with_many_old_lines_is_written_anew_at_a_start(path: Path) -> None:
    catalog = Catalog(path)
    catalog.record(catalog.topics.creation("orders", [[1]]))
    for number in range(SPARE_LINES_MAX + 10):
        catalog.record(catalog.configs.change(TOPIC, "orders", {"retention.ms": str(number)}))

    again = reopened(catalog, path)

    assert len(path.read_bytes().splitlines()) < 10
    assert again.configs.of(TOPIC, "orders") == {"retention.ms": str(SPARE_LINES_MAX + 9)}
    assert again.topics.by_name == catalog.topics.by_name
    assert again.identity.cluster_id == catalog.identity.cluster_id


def test_listeners_hear_of_an_event_after_it_is_applied(path: Path) -> None:
    catalog = Catalog(path)
    heard: list[tuple[str, bool]] = []
    catalog.listeners.append(lambda event: heard.append((event["kind"], "orders" in catalog.topics.by_name)))

    catalog.record(catalog.topics.creation("orders", [[1]]))

    assert heard == [("topic", True)]


def test_a_topic_made_again_has_another_id(path: Path) -> None:
    catalog = Catalog(path)
    catalog.record(catalog.topics.creation("orders", [[1]]))
    first = catalog.topics.by_name["orders"].id
    catalog.record(catalog.topics.deletion(catalog.topics.by_name["orders"]))
    catalog.record(catalog.topics.creation("orders", [[1]]))

    assert catalog.topics.by_name["orders"].id != first
    assert first not in catalog.topics.by_id


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "x" * 250, "../up", "nul\0"])
def test_names_that_no_topic_may_have_are_refused(name: str) -> None:
    with pytest.raises(BrokerError) as refused:
        check_name(name)
    assert refused.value.code == Code.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_other_names_are_fine(name: str) -> None:
    check_name(name)
