"""The catalog in a cluster: copies that apply changes or snapshots are equal; and the saved broker epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.broker import clean_shutdown
from headrace.broker.catalog import Catalog, Event, history, topics
from headrace.broker.catalog.cluster import BrokerRegistration, Brokers
from headrace.broker.catalog.configs import TOPIC, Configs, Quotas, quota_entity
from headrace.broker.catalog.history import CHANGES_AT_ONCE_MAX, CHANGES_KEPT_MAX, RecentChanges, StaleCatalogError
from headrace.broker.catalog.security import Acl, Acls, Credential, Users
from headrace.broker.catalog.topics import PartitionRegistration, Topics
from headrace.broker.log.manager import CLEAN_STOP
from headrace.errors import BrokerError, Code

RULE = Acl(2, "orders", 3, "User:ann", "*", 3, 3)
CREDENTIAL = Credential(4096, b"salt", b"stored", b"server")


def row(node_id: int, epoch: int, *, fenced: bool = False) -> BrokerRegistration:
    return BrokerRegistration(
        node_id, "ab" * 16, epoch, {"PLAINTEXT": ("127.0.0.1", 9092)}, "rack", fenced, stopping=False
    )


def fill(catalog: Catalog) -> None:
    """Something in every section."""
    catalog.record(Topics.creation("orders", [[1, 2], [2, 1]]), Topics.creation("gone", [[1]]))
    catalog.record(Brokers.change(row(1, 1), 1), Brokers.change(row(2, 2, fenced=True), 1))
    catalog.record(Configs.change(TOPIC, "orders", {"retention.ms": "5"}), Acls.creation(RULE))
    catalog.record(Users.change("ann", "SCRAM-SHA-256", CREDENTIAL))
    catalog.record(Quotas.change(quota_entity({"user": "ann"}), {"producer_byte_rate": 5.0}))
    catalog.record(catalog.identity.reserve_producer_ids())


def change(catalog: Catalog) -> None:
    """Something else in every section."""
    by_name = catalog.topics.by_name
    catalog.record(Topics.growth(by_name["orders"], [[2, 1]]))
    partition = PartitionRegistration((1, 2), (2,), 2, 4, partition_epoch=6, elr=(1,), adding=(3,), removing=(1,))
    catalog.record(Topics.partition_change(by_name["orders"], 0, partition))
    catalog.record(Topics.deletion(by_name["gone"]), Topics.creation("new", [[2]]))
    catalog.record(Topics.deletion(by_name["new"]), Topics.creation("gone", [[2]]))
    catalog.record(Brokers.change(row(2, 3), 1), Brokers.removal(1, 3))
    catalog.record(Configs.change(TOPIC, "orders", {"retention.ms": None, "segment.ms": "9"}), Acls.deletion(RULE))
    catalog.record(Users.deletion("ann", "SCRAM-SHA-256"), Users.change("bob", "SCRAM-SHA-512", CREDENTIAL))
    catalog.record(Quotas.change(quota_entity({"user": "ann"}), {"producer_byte_rate": None}))
    catalog.record(catalog.identity.reserve_producer_ids())


def contents(catalog: Catalog) -> list[str]:
    return sorted(map(str, catalog.snapshot()))


@pytest.fixture
def leading(tmp_path: Path) -> Catalog:
    catalog = Catalog(tmp_path / "leading")
    fill(catalog)
    return catalog


def test_a_copy_equals_its_snapshot_also_after_a_restart(leading: Catalog, tmp_path: Path) -> None:
    copy = Catalog(tmp_path / "copy", follows=True)
    assert contents(copy) == contents(Catalog(tmp_path / "none", follows=True))  # it creates no cluster id
    copy.load_snapshot(list(leading.snapshot()), leading.offset)
    assert contents(copy) == contents(leading)
    copy.close()
    assert contents(Catalog(tmp_path / "copy", follows=True)) == contents(leading)


def test_the_epoch_of_an_unregistered_broker_is_not_reused(leading: Catalog, tmp_path: Path) -> None:
    leading.record(Brokers.change(row(3, 7), 1))
    leading.record(Brokers.removal(3, leading.brokers.last_epoch))
    copy = Catalog(tmp_path / "copy", follows=True)
    copy.load_snapshot(list(leading.snapshot()), leading.offset)
    assert (copy.brokers.last_epoch, set(copy.brokers.by_id)) == (7, {1, 2})
    copy.close()
    assert Catalog(tmp_path / "copy", follows=True).brokers.last_epoch == 7


def test_a_snapshot_produces_events_only_for_differences(leading: Catalog, tmp_path: Path) -> None:
    copy = Catalog(tmp_path / "copy", follows=True)
    copy.load_snapshot(list(leading.snapshot()), leading.offset)
    heard: list[Event] = []
    copy.listeners.append(heard.append)
    copy.load_snapshot(list(leading.snapshot()), leading.offset)
    assert heard == []
    change(leading)
    copy.load_snapshot(list(leading.snapshot()), leading.offset)
    assert contents(copy) == contents(leading)
    kinds = [event["kind"] for event in heard]
    assert kinds.count("topic-deleted") == kinds.count("topic") == kinds.count("partition") == 1
    assert "partitions-added" in kinds
    deleted = next(event for event in heard if event["kind"] == "topic-deleted")
    assert deleted["name"] == "gone"
    assert kinds.index("config") < kinds.index("topic")  # logs are created with their options
    assert kinds.index("topic-deleted") < kinds.index("topic")  # the same name
    copy.close()
    assert contents(Catalog(tmp_path / "copy", follows=True)) == contents(leading)


def test_a_copy_that_applies_all_changes_is_equal(leading: Catalog, tmp_path: Path) -> None:
    copy = Catalog(tmp_path / "copy", follows=True)
    copy.load_snapshot(list(leading.snapshot()), leading.offset)
    number = leading.recent.next_number
    change(leading)
    changes = leading.recent.since(leading.recent.generation, number)
    assert changes is not None
    for offset, events in enumerate(changes, number + 1):
        copy.apply_changes(events, offset)
    assert copy.offset == leading.offset
    assert contents(copy) == contents(leading)
    copy.close()
    assert contents(Catalog(tmp_path / "copy", follows=True)) == contents(leading)


def restarted(catalog: Catalog, path: Path) -> Catalog:
    catalog.close()
    return Catalog(path)


@pytest.mark.behaviour("B17")
def test_a_snapshot_that_lacks_changes_of_the_copy_is_rejected(leading: Catalog, tmp_path: Path) -> None:
    older = (tmp_path / "leading").read_bytes()
    leading.record(Topics.creation("later", [[1]]))
    copy = Catalog(tmp_path / "copy", follows=True)
    copy.load_snapshot(list(leading.snapshot()), leading.offset)
    before = contents(copy)
    leading.close()
    (tmp_path / "leading").write_bytes(older)
    heard: list[Event] = []
    copy.listeners.append(heard.append)

    leading = Catalog(tmp_path / "leading")  # in another epoch
    for number in range(5):  # more changes do not help: they are different
        with pytest.raises(StaleCatalogError, match="the controller's catalog is older") as refused:
            copy.load_snapshot(list(leading.snapshot()), leading.offset)
        assert f"up to offset {copy.offset - 1}; this broker's copy is at epoch 1, offset {copy.offset}" in str(
            refused.value
        )
        leading.record(Topics.creation(f"other-{number}", [[1]]))
    assert contents(copy) == before
    assert not heard
    copy.close()
    assert contents(Catalog(tmp_path / "copy", follows=True)) == before


def test_a_snapshot_of_a_later_epoch_is_accepted(
    leading: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "EPOCHS_KEPT_MAX", 3)
    copies = []
    for number in range(6):
        copies.append(Catalog(tmp_path / f"copy-{number}", follows=True))
        copies[-1].load_snapshot(list(leading.snapshot()), leading.offset)
        leading.record(Topics.creation(f"topic-{number}", [[1]]))
        leading = restarted(leading, tmp_path / "leading")
    assert [row.number for row in leading.epochs.rows] == [5, 6, 7]
    for copy in copies:
        copy.load_snapshot(list(leading.snapshot()), leading.offset)
        assert contents(copy) == contents(leading)
        assert copy.offset == leading.offset


def test_two_epochs_with_the_same_number_are_distinguished(leading: Catalog, tmp_path: Path) -> None:
    """The same older journal was started twice, and both runs recorded changes."""
    leading.close()
    journal = (tmp_path / "leading").read_bytes()
    first = Catalog(tmp_path / "leading")
    first.record(Topics.creation("one", [[1]]))
    copy = Catalog(tmp_path / "copy", follows=True)
    copy.load_snapshot(list(first.snapshot()), first.offset)
    (tmp_path / "other").write_bytes(journal)
    other = Catalog(tmp_path / "other")
    for number in range(9):
        other.record(Topics.creation(f"other-{number}", [[1]]))
    assert other.epochs.last == first.epochs.last
    with pytest.raises(StaleCatalogError):
        copy.load_snapshot(list(other.snapshot()), other.offset)


def test_a_copy_of_an_earlier_version_accepts_any_snapshot(leading: Catalog, tmp_path: Path) -> None:
    copy = Catalog(tmp_path / "copy", follows=True)
    events = [event for event in leading.snapshot() if event["kind"] != "controller-epochs"]
    copy.load_snapshot(events, 1000)
    copy.load_snapshot(list(leading.snapshot()), leading.offset)
    assert copy.offset == leading.offset


@pytest.mark.behaviour("B17")
def test_a_topic_missing_in_a_snapshot_is_lost_but_not_deleted(leading: Catalog, tmp_path: Path) -> None:
    copy = Catalog(tmp_path / "copy", follows=True)
    copy.load_snapshot(list(leading.snapshot()), leading.offset)
    heard: list[Event] = []
    copy.listeners.append(heard.append)
    leading.record(Topics.deletion(leading.topics.by_name["gone"]))
    without = [event for event in leading.snapshot() if event.get("name") != "orders" or event["kind"] != "topic"]
    copy.load_snapshot(without, leading.offset)
    assert {event["name"]: event["kind"] for event in heard if "topic" in event["kind"]} == {
        "gone": "topic-deleted",
        "orders": "topic-lost",
    }


def test_a_limited_number_of_deleted_topics_is_kept(
    leading: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "DELETED_KEPT_MAX", 2)
    for number in range(4):
        leading.record(Topics.creation(f"topic-{number}", [[1]]))
        leading.record(Topics.deletion(leading.topics.by_name[f"topic-{number}"]))
    assert [*leading.topics.deleted.values()] == ["topic-2", "topic-3"]
    assert restarted(leading, tmp_path / "leading").topics.deleted == leading.topics.deleted


def test_a_copy_cannot_be_changed(tmp_path: Path) -> None:
    copy = Catalog(tmp_path / "copy", follows=True)
    with pytest.raises(BrokerError) as refused:
        copy.record(Topics.creation("orders", [[1]]))
    assert refused.value.code == Code.NOT_CONTROLLER
    assert not copy.topics.by_name


def test_an_overlay_ends_with_the_next_snapshot_or_restart(leading: Catalog, tmp_path: Path) -> None:
    copy = Catalog(tmp_path / "copy", follows=True)
    copy.load_snapshot(list(leading.snapshot()), leading.offset)
    orders = copy.topics.by_name["orders"]
    copy.overlay([Topics.partition_change(orders, 0, PartitionRegistration((1, 2), (1, 2), -1, 0))])
    assert orders.partitions[0].leader == -1
    assert Catalog(tmp_path / "copy", follows=True).topics.by_name["orders"].partitions[0].leader == 1
    copy.load_snapshot(list(leading.snapshot()), leading.offset)
    assert orders.partitions[0].leader == 1


def test_recent_changes_are_returned_by_number() -> None:
    recent = RecentChanges()
    for number in range(CHANGES_KEPT_MAX + 10):
        recent.add([{"kind": str(number)}])
    last = recent.next_number
    assert last == CHANGES_KEPT_MAX + 10
    assert recent.since(recent.generation, last) == []
    assert recent.since(recent.generation, last - 1) == [[{"kind": str(last - 1)}]]
    first = recent.since(recent.generation, 10)
    assert first is not None
    assert len(first) == CHANGES_AT_ONCE_MAX
    assert first[0] == [{"kind": "10"}]
    assert recent.since(recent.generation, 9) is None  # no longer kept
    assert recent.since(recent.generation, last + 1) is None  # beyond the last change
    assert recent.since(recent.generation + 1, last) is None
    assert RecentChanges().generation != recent.generation


def test_a_journal_from_before_clusters_is_read(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "journal")
    catalog.record(Topics.creation("orders", [[1]]))
    text = (tmp_path / "journal").read_text()
    assert "[[1]]" not in text
    assert '"partitions":[[1,0,[1],[1]]]' in text  # unchanged format: leader, epoch, replicas, in-sync replicas
    assert Catalog(tmp_path / "journal").topics.by_name["orders"].partitions[0] == PartitionRegistration(
        (1,), (1,), 1, 0
    )


def test_data_are_trusted_after_a_clean_stop_or_in_the_same_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_id = tmp_path / "boot_id"
    monkeypatch.setattr(clean_shutdown, "BOOT_ID", boot_id)
    assert clean_shutdown.previous_epoch(tmp_path) == -1  # it never ran
    boot_id.write_text("monday\n")
    clean_shutdown.save_epoch(tmp_path, 7)
    assert clean_shutdown.previous_epoch(tmp_path) == 7  # killed
    boot_id.write_text("tuesday\n")
    assert clean_shutdown.previous_epoch(tmp_path) == -1  # a power cut
    (tmp_path / CLEAN_STOP).touch()
    assert clean_shutdown.previous_epoch(tmp_path) == 7
    (tmp_path / CLEAN_STOP).unlink()
    boot_id.unlink()
    clean_shutdown.save_epoch(tmp_path, 8)
    assert clean_shutdown.previous_epoch(tmp_path) == -1  # a system without a boot id
    (tmp_path / clean_shutdown.FILE_NAME).write_text("{torn")
    assert clean_shutdown.previous_epoch(tmp_path) == -1


def test_a_start_killed_after_a_clean_stop_and_a_boot_keeps_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_id = tmp_path / "boot_id"
    monkeypatch.setattr(clean_shutdown, "BOOT_ID", boot_id)
    boot_id.write_text("monday\n")
    clean_shutdown.save_epoch(tmp_path, 7)
    (tmp_path / CLEAN_STOP).touch()
    boot_id.write_text("tuesday\n")
    assert clean_shutdown.previous_epoch(tmp_path) == 7
    (tmp_path / CLEAN_STOP).unlink()  # as opening the logs does, before a kill
    assert clean_shutdown.previous_epoch(tmp_path) == 7
    boot_id.write_text("wednesday\n")
    assert clean_shutdown.previous_epoch(tmp_path) == -1


@pytest.mark.parametrize(
    ("unfenced_epoch", "previous_epoch", "trusted"),
    [(5, 5, True), (5, 6, True), (5, 9, True), (5, 4, False), (5, -1, False), (5, 10, False), (0, -1, False)],
    ids=["not kept", "kept, never unfenced", "the last", "older", "lost", "of another catalog", "new"],
)
def test_data_of_the_last_unfenced_epoch_or_a_later_one_are_trusted(
    tmp_path: Path, unfenced_epoch: int, previous_epoch: int, trusted: bool
) -> None:
    catalog = Catalog(tmp_path / "journal")
    catalog.record(Brokers.change(replace(row(2, 9, fenced=True), unfenced_epoch=unfenced_epoch), 1))
    recorded = Catalog(tmp_path / "journal").brokers.by_id[2]
    assert recorded.trusts(previous_epoch) is trusted


def test_registrations_of_earlier_versions_trust_the_last_epoch_only() -> None:
    event = Brokers.change(row(2, 9, fenced=True), 1)
    del event["unfenced_epoch"]
    brokers = Brokers()
    brokers.apply(event)
    assert [epoch for epoch in (8, 9) if brokers.by_id[2].trusts(epoch)] == [9]


@pytest.mark.behaviour("B17")
@pytest.mark.parametrize("name", [clean_shutdown.FILE_NAME, clean_shutdown.COPY_NAME])
def test_damage_to_one_of_the_two_epoch_files_is_tolerated(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    clean_shutdown.save_epoch(tmp_path, 7)
    (tmp_path / CLEAN_STOP).touch()
    whole = (tmp_path / name).read_text()
    for damaged in ("{torn", "[]", "7", whole.replace("7", "9", 1), whole + "more"):
        caplog.clear()
        (tmp_path / name).write_text(damaged)
        assert clean_shutdown.previous_epoch(tmp_path) == 7
        assert f"{tmp_path / name} is damaged" in caplog.text
    (tmp_path / name).unlink()
    assert clean_shutdown.previous_epoch(tmp_path) == 7
    (tmp_path / name).write_text('{"epoch": 7, "boot_id": "of an earlier version"}')
    assert clean_shutdown.previous_epoch(tmp_path) == 7
