"""Repair of a damaged data folder: `headrace broker repair`.

    journal ─► intact lines, and lines with one wrong bit ─► catalog ┐
    journals of other brokers (--from) ─► the newest ────────────────┴► partition folders ─► plan ─► apply

The plan lists what is lost and what would be done. Nothing is written before `apply`, which keeps a copy of the
journal. Records are never deleted.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker import clean_shutdown
from headrace.broker.broker import JOURNAL_NAME
from headrace.broker.catalog import Sections
from headrace.broker.catalog.configs import TOPIC, Configs
from headrace.broker.catalog.journal import Event, Line, end_path, noted_end, parse, set_aside, write_snapshot
from headrace.broker.catalog.topics import INTERNAL, PartitionRegistration, Topic, Topics
from headrace.broker.disk import sync_path
from headrace.broker.log.checkpoints import NO_TOPIC_ID, read_metadata, write_metadata
from headrace.broker.log.files import LEADER_EPOCHS, LOG, METADATA
from headrace.broker.log.manager import lock_folder, partition_folders
from headrace.errors import ConfigError, IllegalStateError
from headrace.types import TopicPartition

CORRECTED_BYTES_MAX = 4096
"""The maximum size of a damaged range of the journal in which a single wrong bit is searched."""
_FIRST_NODE_ID = 1
_SAFE_CONFIGS: dict[bool, dict[str, str]] = {
    False: {"retention.ms": "-1", "retention.bytes": "-1"},
    True: {"cleanup.policy": "compact"},
}
"""Options, by whether a topic is internal, that delete nothing while the original ones are unknown."""


@dataclass(slots=True)
class RepairPlan:
    """The result of the analysis, and the actions to take."""

    folder: Path
    problems: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    events: list[Event] | None = None  # of the new journal; None: the journal is kept
    offset: int = 0
    topic_ids: dict[Path, bytes] = field(default_factory=dict)  # for new partition.metadata files

    def apply(self) -> Path | None:
        """Carry out the plan; return the copy of the old journal if it was replaced."""
        kept = None
        if self.events is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / JOURNAL_NAME
            if path.exists():
                kept = set_aside(path, "before-repair", path.read_bytes())
            write_snapshot(path, self.events, self.offset)
            end_path(path).unlink(missing_ok=True)
            sync_path(self.folder)
        for folder, topic_id in self.topic_ids.items():
            metadata = folder / METADATA
            if metadata.exists():
                set_aside(metadata, "before-repair", metadata.read_bytes())
            write_metadata(metadata, topic_id)
        return kept


def repair(
    folder: Path, sources: Sequence[Path] = (), accepted: Sequence[str] = (), *, apply: bool = False
) -> tuple[RepairPlan, Path | None]:
    """Analyse a data folder that no broker uses; with `apply`, repair it. Return the plan and the journal's copy.

    `sources` are data folders of other brokers of the cluster; the newest of their catalogs is used. `accepted` are
    partitions (topic-number) whose folders belong to the topic in the catalog, whatever partition.metadata says.
    """
    if not folder.is_dir() and not sources:
        raise ConfigError(f"data folder {folder} does not exist")
    lock_fd = lock_folder(folder) if folder.is_dir() else -1
    try:
        plan = _Planning(folder).plan(sources, accepted)
        return plan, plan.apply() if apply else None
    finally:
        if lock_fd >= 0:
            os.close(lock_fd)


class _Planning:
    """Creates a plan step by step."""

    def __init__(self, folder: Path) -> None:
        self._plan = RepairPlan(folder)
        self._catalog = Sections()
        self._is_without_journal = False
        self._new_ids: set[bytes] = set()  # of topics whose id is lost

    def plan(self, sources: Sequence[Path], accepted: Sequence[str]) -> RepairPlan:
        plan = self._plan
        changed = self._read_own()
        if sources:
            changed = self._take_newest(sources) or changed
        elif changed and self._catalog.brokers.by_id:
            plan.problems.append(
                "this is the catalog of a cluster, and other brokers have copies: use --from FOLDER_OF_ANOTHER_BROKER "
                "to lose nothing"
            )
        changed = self._look_at_folders(set(accepted)) or changed
        if self._is_without_journal and not sources and changed:
            plan.lost.append(
                "what only the journal had: users and passwords (SCRAM), ACLs, quotas, options of topics and brokers, "
                "topics without a folder, and the cluster id. Set them again before clients reconnect: without ACLs "
                "and users, clients may be authorized or rejected wrongly"
            )
        if changed:
            self._catalog.apply(self._catalog.identity.skip_producer_ids())  # lost changes may have allocated some
            plan.events = list(self._catalog.snapshot())
            plan.actions.append(f"rewrite {plan.folder / JOURNAL_NAME}, and keep a copy of the old one")
        return plan

    # -- the journal -----------------------------------------------------------------------------

    def _read_own(self) -> bool:
        """Load what is left of the journal; return whether it is damaged."""
        plan = self._plan
        path = plan.folder / JOURNAL_NAME
        if not path.exists() or not path.stat().st_size:
            plan.problems.append(f"{path} is {'empty' if path.exists() else 'missing'}")
            self._is_without_journal = True
            return False
        lines = parse(path.read_bytes())
        is_wrong = any(line.problem for line in lines) or bool(lines and lines[-1].parts_missing)
        for line in _salvaged(lines, plan) if is_wrong else lines:
            plan.offset = max(plan.offset, line.offset)
            try:
                for event in line.events:
                    self._catalog.apply(event)
            except (LookupError, TypeError, ValueError) as error:
                is_wrong = True
                plan.lost.append(f"line {line.number}, which cannot be applied without the lost lines: {error!r}")
        if not is_wrong and plan.offset < (noted := noted_end(path)):
            plan.problems.append(
                f"{path} ends at change {plan.offset}, but had change {noted} at the last clean stop: its last lines "
                "are lost, or it is an older copy"
            )
        if lines and lines[-1].parts_missing:
            plan.lost.append(f"{lines[-1].parts_missing} lines at the end of the snapshot")
        return is_wrong

    def _take_newest(self, sources: Sequence[Path]) -> bool:
        """Load the newest catalog of other brokers; return whether it is newer than this one."""
        plan = self._plan
        copies = [_copy_of(source) for source in sources]
        newest = max(copies, key=lambda copy: (copy.catalog.epochs.last, copy.offset))
        for copy in copies:
            if copy.catalog.identity.cluster_id != newest.catalog.identity.cluster_id:
                raise ConfigError(
                    f"--from {copy.path} and {newest.path} belong to different clusters: name brokers of one cluster"
                )
            copy.catalog.epochs.check_continued_by(copy.offset, newest.catalog.epochs, newest.offset)
        own_id, their_id = self._catalog.identity.cluster_id, newest.catalog.identity.cluster_id
        if own_id and own_id != their_id:
            raise ConfigError(
                f"--from {newest.path} belongs to cluster {their_id}, but this data folder to cluster {own_id}: "
                "name brokers of this cluster"
            )
        own, theirs = self._catalog.epochs, newest.catalog.epochs
        if not plan.lost and theirs.common_offset(newest.offset, own, plan.offset) >= newest.offset:
            plan.problems.append(f"--from {newest.path} is not newer than the catalog here: it is not used")
            return False
        plan.lost = []
        common = own.common_offset(plan.offset, theirs, newest.offset)
        if own.rows and plan.offset > common:
            plan.lost.append(f"the changes of the catalog here from offset {common} to {plan.offset}")
        self._catalog, plan.offset = newest.catalog, newest.offset
        plan.actions.append(
            f"use the catalog of {newest.path}: epoch {newest.catalog.epochs.last}, offset {newest.offset}, "
            f"{len(newest.catalog.topics.by_name)} topics"
        )
        return True

    # -- partition folders -----------------------------------------------------------------------

    def _look_at_folders(self, accepted: set[str]) -> bool:
        """Find records without a topic in the catalog; return whether topics were added for them."""
        plan, topics = self._plan, self._catalog.topics
        unknown: dict[tuple[str, bytes], dict[int, Path]] = {}
        unnamed: dict[TopicPartition, Path] = {}  # with records but without a topic id
        for (name, index), folder in partition_folders(plan.folder).items() if plan.folder.is_dir() else ():
            topic_id = read_metadata(folder / METADATA)
            topic = topics.by_name.get(name)
            if topic is not None and topic_id == topic.id:
                continue
            if topic_id == NO_TOPIC_ID and (topic is None or folder.name not in accepted):
                if _has_records(folder):
                    unnamed[TopicPartition(name, index)] = folder
                continue
            if topic is not None and folder.name in accepted:
                accepted.discard(folder.name)
                plan.topic_ids[folder] = topic.id
                plan.actions.append(f"write {folder / METADATA} for topic {name}, id {topic.id.hex()}")
            elif topic_id is not None and topic is None:
                if topic_id not in topics.deleted:
                    unknown.setdefault((name, topic_id), {})[index] = folder
            elif _has_records(folder):
                problem = "is damaged" if topic_id is None else f"has topic id {topic_id.hex()}"
                expected = f"topic {name} has {topic.id.hex()}" if topic else f"there is no topic {name} in the catalog"
                plan.problems.append(
                    f"{folder / METADATA} {problem}, but {expected}: the folder is kept and not used. If the "
                    f"records belong to this topic: --accept {folder.name}"
                )
        self._name_folders(unnamed, unknown, accepted)
        if accepted:
            raise ConfigError(
                f"--accept {', '.join(sorted(accepted))}: the folder does not exist, is in use, or its topic is not "
                "in the catalog"
            )
        return self._adopt(unknown)

    def _name_folders(
        self,
        unnamed: dict[TopicPartition, Path],
        unknown: dict[tuple[str, bytes], dict[int, Path]],
        accepted: set[str],
    ) -> None:
        """Assign topics to folders without partition.metadata, if they are accepted."""
        plan = self._plan
        ids = dict(unknown.keys())  # by name
        ambiguous = {name for name, topic_id in unknown if ids[name] != topic_id}  # several topics of one name
        for (name, index), folder in unnamed.items():
            problem = f"{folder / METADATA} is missing"
            if folder.name in accepted and not self._is_of_cluster and name not in ambiguous:
                accepted.discard(folder.name)
                if name not in ids:
                    ids[name] = uuid.uuid4().bytes
                    self._new_ids.add(ids[name])
                topic_id = plan.topic_ids[folder] = ids[name]
                unknown.setdefault((name, topic_id), {})[index] = folder
                plan.actions.append(f"write {folder / METADATA} for topic {name}, {self._shown_id(topic_id)}")
            elif name in self._catalog.topics.by_name or name in ids:
                plan.problems.append(
                    f"{problem}: the broker assigns the records to topic {name}. To write it: --accept {folder.name}"
                )
            else:
                plan.problems.append(
                    f"{problem}, and there is no topic {name} in the catalog: the folder is kept and not used. "
                    + (
                        "Another broker of the cluster may have the topic: --from FOLDER_OF_ANOTHER_BROKER"
                        if self._is_of_cluster
                        else f"To add the topic with these records: --accept {folder.name}"
                    )
                )

    def _shown_id(self, topic_id: bytes) -> str:
        return "with a new id" if topic_id in self._new_ids else f"id {topic_id.hex()}"

    @property
    def _is_of_cluster(self) -> bool:
        return bool(self._catalog.brokers.by_id) or (self._plan.folder / clean_shutdown.FILE_NAME).exists()

    def _adopt(self, unknown: dict[tuple[str, bytes], dict[int, Path]]) -> bool:
        """Add topics to the catalog for folders without one: a standalone broker has all their partitions."""
        plan = self._plan
        changed = False
        for (name, topic_id), folders in unknown.items():
            shown = ", ".join(str(folder) for folder in folders.values())
            if self._is_of_cluster or topic_id in self._catalog.topics.by_id:
                plan.problems.append(
                    f"{shown}: stray, of topic {name} that is not in the catalog; it is kept. Another broker of the "
                    "cluster may have it: --from FOLDER_OF_ANOTHER_BROKER"
                )
                continue
            if sum(name == other for other, _ in unknown) > 1:
                plan.problems.append(
                    f"{shown}: the folders belong to several topics named {name}: move those of one topic away"
                )
                continue
            partitions = [_partition(self._node_id(), folders.get(index)) for index in range(max(folders) + 1)]
            configs = {**_SAFE_CONFIGS[name in INTERNAL], **self._catalog.configs.of(TOPIC, name)}
            self._catalog.apply(Configs.change(TOPIC, name, configs))
            self._catalog.apply(Topics.existing(Topic(name, topic_id, partitions)))
            plan.problems.append(f"{shown}: the catalog has lost topic {name}")
            shown_configs = ", ".join(f"{option}={value}" for option, value in sorted(configs.items()))
            plan.actions.append(
                f"add topic {name}, {self._shown_id(topic_id)}, with {len(partitions)} partitions and {shown_configs}; "
                "its other options are lost"
            )
            plan.offset += 1
            changed = True
        return changed

    def _node_id(self) -> int:
        """Return the node id of a standalone broker."""
        partitions = (partition for topic in self._catalog.topics.by_name.values() for partition in topic.partitions)
        return next((partition.replicas[0] for partition in partitions), _FIRST_NODE_ID)


@dataclass(frozen=True, slots=True)
class _Copy:
    """The catalog of another broker."""

    path: Path
    catalog: Sections
    offset: int


def _copy_of(source: Path) -> _Copy:
    path = source / JOURNAL_NAME if source.is_dir() else source
    try:
        lines = parse(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--from {source}: cannot read {path}: {error.strerror}") from error
    if lines and not lines[-1].is_whole:
        lines.pop()  # torn, or just being written
    bad = next((line for line in lines if line.problem), None)
    if bad is not None or not lines or lines[-1].parts_missing:
        where = f"in line {bad.number}: {bad.problem}" if bad else "at its end"
        raise IllegalStateError(f"--from {source}: {path} is damaged {where}; use the folder of another broker")
    catalog = Sections()
    for event in (event for line in lines for event in line.events):
        catalog.apply(event)
    return _Copy(path, catalog, lines[-1].offset)


def _salvaged(lines: list[Line], plan: RepairPlan) -> list[Line]:
    """Return the usable lines, with single wrong bits corrected; add losses to the plan."""
    data = b""
    index = 0
    while index < len(lines):
        line = lines[index]
        end = index + 1
        if line.is_whole:
            data += line.data
        else:
            end = next((after for after in range(end, len(lines)) if lines[after].is_whole), len(lines))
            text = f"line {line.number} (byte {line.position}): {line.problem}"
            plan.problems.append(f"{plan.folder / JOURNAL_NAME}: {text}")
            damaged = b"".join(bad.data for bad in lines[index:end])
            corrected = _with_one_bit_flipped(damaged)
            data += corrected
            if corrected:
                plan.actions.append(f"correct a wrong bit in line {line.number}")
            else:
                plan.lost.append(text + _hint(damaged))
        index = end
    usable = parse(data)
    plan.problems += [
        f"{plan.folder / JOURNAL_NAME}: a line is out of order: {row.problem}" for row in usable if row.problem
    ]
    return usable


def _with_one_bit_flipped(data: bytes) -> bytes:
    """Return these bytes with the one bit flipped that makes all lines intact; empty if there is none."""
    if len(data) > CORRECTED_BYTES_MAX:
        return b""
    tried = bytearray(data)
    for position in range(len(data)):
        for bit in range(8):
            tried[position] ^= 1 << bit
            if tried.endswith(b"\n") and all(line.is_whole for line in parse(bytes(tried))):
                return bytes(tried)
            tried[position] ^= 1 << bit
    return b""


def _hint(data: bytes) -> str:
    """Return the contents of a damaged line as far as they are readable."""
    kinds = [kind.decode() for kind in re.findall(rb'"kind":"([a-z-]+)"', data) if kind not in (b"change", b"snapshot")]
    names = [name.decode() for name in re.findall(rb'"name":"([\w.-]+)"', data)]
    return f" (it contains: {', '.join([*kinds, *names])})" if kinds or names else ""


def _has_records(folder: Path) -> bool:
    return any(path.stat().st_size for path in folder.glob(f"*{LOG}"))


def _partition(node_id: int, folder: Path | None) -> PartitionRegistration:
    """Return the state of a recovered partition, in a later leader epoch than its records."""
    epochs = [] if folder is None else re.findall(r"^(\d+) \d+$", _text(folder / LEADER_EPOCHS), re.MULTILINE)
    return PartitionRegistration((node_id,), (node_id,), node_id, max(map(int, epochs), default=-1) + 1)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
