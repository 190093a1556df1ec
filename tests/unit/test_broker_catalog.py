"""The catalog: recorded changes survive a restart, completely or not at all."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path

import pytest

from headrace.broker.catalog import Catalog
from headrace.broker.catalog.configs import BROKER, TOPIC
from headrace.broker.catalog.journal import SPARE_LINES_MAX, DamagedJournalError, Journal
from headrace.broker.catalog.topics import PartitionRegistration, check_name
from headrace.errors import BrokerError, Code


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog"


def reopened(catalog: Catalog, path: Path) -> Catalog:
    catalog.close()
    return Catalog(path)


def test_all_changes_survive_a_restart(path: Path) -> None:
    catalog = Catalog(path)
    catalog.record(catalog.topics.creation("orders", [[1], [1]]), catalog.topics.creation("gone", [[1]]))
    orders = catalog.topics.by_name["orders"]
    catalog.record(catalog.topics.growth(orders, [[1, 2]]))
    catalog.record(catalog.topics.partition_change(orders, 0, PartitionRegistration((1, 2), (2,), 2, 5)))
    catalog.record(catalog.topics.deletion(catalog.topics.by_name["gone"]))
    catalog.record(catalog.configs.change(TOPIC, "orders", {"retention.ms": "5", "segment.ms": "6"}))
    catalog.record(catalog.configs.change(TOPIC, "orders", {"retention.ms": None}))
    catalog.record(catalog.identity.reserve_producer_ids())

    again = reopened(catalog, path)

    assert again.topics.by_name == catalog.topics.by_name
    assert again.topics.by_id == {orders.id: again.topics.by_name["orders"]}
    assert again.topics.by_name["orders"].partitions[0] == PartitionRegistration((1, 2), (2,), 2, 5)
    assert again.configs.of(TOPIC, "orders") == {"segment.ms": "6"}
    assert again.configs.of(BROKER, "1") == {}
    assert again.identity.cluster_id == catalog.identity.cluster_id
    assert again.identity.next_producer_id == 1000


@pytest.mark.behaviour("B17")
def test_a_torn_last_line_is_truncated_logged_and_kept(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog = Catalog(path)
    catalog.record(catalog.topics.creation("whole", [[1]]))
    before = path.stat().st_size
    catalog.record(catalog.topics.creation("torn", [[1]]), catalog.topics.creation("torn-too", [[1]]))
    catalog.close()
    whole = path.read_bytes()

    for number, kept in enumerate(range(before + 1, len(whole), 7), 1):
        path.write_bytes(whole[:kept])
        caplog.clear()
        damaged = Catalog(path)
        assert f"line 3 ({kept - before} bytes at byte {before}): it is incomplete" in caplog.text
        assert path.with_name(f"{path.name}.torn-{number}").read_bytes() == whole[before:kept]
        assert set(damaged.topics.by_name) == {"whole"}, kept
        damaged.record(damaged.topics.creation("next", [[1]]))
        damaged = reopened(damaged, path)
        assert set(damaged.topics.by_name) == {"whole", "next"}
        damaged.close()


def test_an_intact_journal_is_not_changed_at_start(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog = Catalog(path)
    catalog.record(catalog.topics.creation("whole", [[1]]))
    reopened(catalog, path).close()
    assert not caplog.records
    assert {file.name for file in path.parent.iterdir()} == {path.name, f"{path.name}.end"}


def test_producer_ids_of_a_truncated_last_line_are_skipped(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog = Catalog(path)
    catalog.record(catalog.topics.creation("kept", [[1]]))
    catalog.record(catalog.identity.reserve_producer_ids())
    catalog.close()
    flip(path, -10)

    again = Catalog(path)

    assert set(again.topics.by_name) == {"kept"}
    assert "line 3" in caplog.text
    assert "its checksum does not match" in caplog.text
    assert again.identity.next_producer_id >= 1000


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def three_topics(path: Path) -> None:
    catalog = Catalog(path)
    for name in ("a", "b", "c"):
        catalog.record(catalog.topics.creation(name, [[1]]))
    catalog.close()


def assert_refused(path: Path, *texts: str) -> None:
    """Check that opening fails with a reason and changes nothing."""
    before = path.read_bytes()
    with pytest.raises(DamagedJournalError) as refused:
        Catalog(path)
    for text in (str(path), f"headrace broker repair --data-dir {path.parent}", *texts):
        assert text in str(refused.value)
    assert path.read_bytes() == before
    assert {file.name for file in path.parent.iterdir()} == {path.name, f"{path.name}.end"}


@pytest.mark.behaviour("B17")
def test_a_damaged_line_before_the_last_prevents_the_start(path: Path) -> None:
    three_topics(path)
    whole = path.read_bytes()
    first, second, *_ = lines_of(path)
    for position in range(len(first), len(first) + len(second)):
        flip(path, position)
        assert_refused(path, f"line 2 (byte {len(first)})")
        path.write_bytes(whole)


@pytest.mark.behaviour("B17")
@pytest.mark.parametrize(
    ("order", "line"),
    [((0, 2, 3), 2), ((0, 1, 3), 3), ((0, 2, 1, 3), 2), ((0, 1, 1, 2, 3), 3), ((1, 2, 3), 1)],
    ids=["second lost", "third lost", "swapped", "twice", "first lost"],
)
def test_lost_or_swapped_lines_prevent_the_start(path: Path, order: tuple[int, ...], line: int) -> None:
    three_topics(path)
    lines = lines_of(path)
    path.write_bytes(b"".join(lines[number] for number in order))
    assert_refused(path, f"in line {line} (byte ", "comes after change")


@pytest.mark.behaviour("B17")
def test_a_snapshot_with_a_lost_line_prevents_the_start(path: Path) -> None:
    three_topics(path)
    catalog = Catalog(path)
    Journal(path).replace(catalog.snapshot(), catalog.offset)
    catalog.close()
    lines = lines_of(path)
    assert len(lines) > 4
    path.write_bytes(b"".join(lines[:-1]))
    assert_refused(path, f"after line {len(lines) - 1}", "1 parts of its first snapshot are missing")
    path.write_bytes(b"".join(lines)[:-1])
    assert_refused(path, "it is incomplete")
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    assert_refused(path, "line 3", "part 4", "comes after part 2")
    path.write_bytes(b"".join(lines))
    assert set(Catalog(path).topics.by_name) == {"a", "b", "c"}


@pytest.mark.behaviour("B17")
def test_an_older_copy_is_logged_and_no_producer_id_is_reused(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog = Catalog(path)
    older = path.read_bytes()
    catalog.record(catalog.identity.reserve_producer_ids())
    offset = catalog.offset
    catalog.close()
    path.write_bytes(older)
    again = Catalog(path)
    assert f"{path} ends at change 1, but had change {offset} at the last clean stop" in caplog.text
    assert again.identity.next_producer_id >= 1000
    caplog.clear()
    (again := reopened(again, path)).close()
    assert not caplog.records
    path.with_name(f"{path.name}.end").write_bytes(b"\0")
    reopened(Catalog(path), path).close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_unknown_event_prevents_the_start(path: Path) -> None:
    catalog = Catalog(path)
    catalog.close()
    journal = Journal(path)
    journal.open()
    journal.append([{"kind": "of the future"}])
    journal.close()
    assert_refused(path, "line 2", "of the future", "A newer version")


def test_a_journal_of_an_earlier_version_can_be_continued(path: Path) -> None:
    bodies = [
        b'[{"id":"an-old-cluster","kind":"cluster"}]',
        b'[{"id":"%s","kind":"topic","name":"old","partitions":[[1,0,[1],[1]]]}]' % (b"ab" * 16),
    ]
    path.write_bytes(b"".join(b"%08x %b\n" % (zlib.crc32(body), body) for body in bodies))
    catalog = Catalog(path)
    assert catalog.identity.cluster_id == "an-old-cluster"
    assert catalog.topics.by_name["old"].id.hex() == "ab" * 16
    assert (catalog.offset, catalog.epochs.last) == (3, 1)
    catalog.record(catalog.topics.creation("new", [[1]]))
    assert set(reopened(catalog, path).topics.by_name) == {"old", "new"}


def test_a_change_that_cannot_be_synced_is_not_applied(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog(path)
    catalog.record(catalog.topics.creation("before", [[1]]))
    before, sync, fails = path.read_bytes(), os.fsync, [True]

    def failing(fd: int) -> None:
        if fails and fails.pop():
            raise OSError(errno.EIO, "the disk is gone")
        sync(fd)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(BrokerError, match="the disk is gone") as refused:
        catalog.record(catalog.topics.creation("failed", [[1]]))
    assert refused.value.code == Code.KAFKA_STORAGE_ERROR
    assert path.read_bytes() == before
    assert set(catalog.topics.by_name) == {"before"}
    catalog.record(catalog.topics.creation("after", [[1]]))
    assert set(reopened(catalog, path).topics.by_name) == {"before", "after"}


def test_the_catalog_is_read_only_after_a_failed_roll_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog(path)

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    with monkeypatch.context() as context:
        context.setattr(os, "fsync", failing)
        with pytest.raises(BrokerError, match="the disk is gone"):
            catalog.record(catalog.topics.creation("failed", [[1]]))
    with pytest.raises(BrokerError, match="the catalog is read-only until the broker is restarted"):
        catalog.record(catalog.topics.creation("later", [[1]]))
    assert set(reopened(catalog, path).topics.by_name) == set()


def test_the_folder_is_synced_after_the_journal_was_replaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog(path)
    order: list[str] = []
    replace, sync = os.replace, os.fsync

    def noted_replace(source: Path, target: Path) -> None:
        order.append("replace")
        replace(source, target)

    def noted_sync(fd: int) -> None:
        order.append("folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "file")
        sync(fd)

    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(os, "fsync", noted_sync)
    journal = Journal(path)
    journal.open()
    journal.replace(catalog.snapshot(), catalog.offset)
    assert order == ["file", "replace", "folder"]


def test_a_long_journal_is_rewritten_at_start(path: Path) -> None:
    catalog = Catalog(path)
    catalog.record(catalog.topics.creation("orders", [[1]]))
    for number in range(SPARE_LINES_MAX + 10):
        catalog.record(catalog.configs.change(TOPIC, "orders", {"retention.ms": str(number)}))

    again = reopened(catalog, path)

    assert len(path.read_bytes().splitlines()) < 10
    assert again.configs.of(TOPIC, "orders") == {"retention.ms": str(SPARE_LINES_MAX + 9)}
    assert again.topics.by_name == catalog.topics.by_name
    assert again.identity.cluster_id == catalog.identity.cluster_id


def test_listeners_are_called_after_an_event_is_applied(path: Path) -> None:
    catalog = Catalog(path)
    heard: list[tuple[str, bool]] = []
    catalog.listeners.append(lambda event: heard.append((event["kind"], "orders" in catalog.topics.by_name)))

    catalog.record(catalog.topics.creation("orders", [[1]]))

    assert heard == [("topic", True)]


def test_a_recreated_topic_has_another_id(path: Path) -> None:
    catalog = Catalog(path)
    catalog.record(catalog.topics.creation("orders", [[1]]))
    first = catalog.topics.by_name["orders"].id
    catalog.record(catalog.topics.deletion(catalog.topics.by_name["orders"]))
    catalog.record(catalog.topics.creation("orders", [[1]]))

    assert catalog.topics.by_name["orders"].id != first
    assert first not in catalog.topics.by_id


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "x" * 250, "../up", "nul\0"])
def test_invalid_topic_names_are_rejected(name: str) -> None:
    with pytest.raises(BrokerError) as refused:
        check_name(name)
    assert refused.value.code == Code.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_valid_topic_names_are_accepted(name: str) -> None:
    check_name(name)
