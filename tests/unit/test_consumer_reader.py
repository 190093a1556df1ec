"""The reader of fetched data: the order of data of paused partitions, and the memory that it frees."""

from __future__ import annotations

from headrace.client.plugins import PluginLoader
from headrace.consumer.deserialization import Deserialization
from headrace.consumer.partitions import AssignedPartition, Assignment, FetchBuffer, PositionState, visible
from headrace.consumer.reader import RecordReader
from headrace.consumer.settings import consumer_log, resolve
from headrace.types import TopicPartition
from headrace.wire.layout import Record
from headrace.wire.records import encode

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class Partitions:
    """Two assigned partitions, and what the reader asks for."""

    def __init__(self):
        self.assignment = Assignment({name: self.started(name, 0) for name in (TP, OTHER)})
        self.restarted = []

    @staticmethod
    def started(name, offset):
        partition = AssignedPartition(name, PositionState.FETCH)
        partition.start_at(offset)
        return partition

    def __getitem__(self, name):
        return self.assignment.partitions[name]

    def restart(self, partition, offset):
        self.restarted.append((partition.name, offset))
        moved = self.started(partition.name, offset)
        moved.paused = partition.paused
        self.assignment = Assignment({**self.assignment.partitions, partition.name: moved})

    def data_taken(self):
        pass

    def lag(self, partition):
        return None

    def lead(self, partition):
        return None

    def data_read(self, parts):
        pass


class Rig:
    def __init__(self, bytes_max=1_000_000):
        config = resolve({"bootstrap.servers": "127.0.0.1:9092"})
        log = consumer_log(config)
        self.partitions = Partitions()
        self.buffer = FetchBuffer()
        deserialization = Deserialization.load(config, PluginLoader(config), log)
        self.reader = RecordReader(self.buffer, self.partitions, bytes_max, deserialization)

    def fetched(self, name, offset, count=2):
        """Put data of a partition into the buffer, as a response does."""
        partition = self.partitions[name]
        data = bytes(encode([Record(offset + i, 1, None, b"v", ()) for i in range(count)]))
        self.buffer.put(visible(data, partition, None))
        partition.fetch_offset = offset + count

    def read(self, count=100):
        return [(record.partition, record.offset) for record in self.reader.records(count)]


def test_all_data_of_a_paused_partition_are_kept_in_their_order():
    rig = Rig()
    for offset in (0, 2, 4):
        rig.fetched(TP, offset)
    rig.partitions[TP].paused = True
    assert rig.read() == []
    rig.partitions[TP].paused = False
    assert rig.read() == [(0, offset) for offset in range(6)]
    assert rig.buffer.size == 0


def test_data_from_before_a_pause_come_before_those_that_follow():
    rig = Rig()
    rig.fetched(TP, 0)
    rig.partitions[TP].paused = True
    rig.fetched(OTHER, 0)
    rig.fetched(TP, 2)
    assert rig.read(1) == [(1, 0)]  # the second part waits behind those of the other partition
    rig.partitions[TP].paused = False
    assert sorted(rig.read()) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1)]
    assert rig.partitions[TP].position == 4
    assert rig.buffer.size == 0


def test_a_full_buffer_drops_all_data_of_paused_partitions():
    rig = Rig(bytes_max=1)
    rig.fetched(TP, 0)
    rig.fetched(TP, 2)
    rig.partitions[TP].paused = True
    assert rig.read() == []
    assert rig.partitions.restarted == [(TP, 0)]
    assert rig.buffer.size == 0


def test_undo_frees_all_data_of_paused_partitions():
    rig = Rig()
    rig.fetched(TP, 0)
    rig.fetched(TP, 2)
    rig.partitions[TP].paused = True
    assert rig.read() == []
    rig.reader.undo()
    assert rig.buffer.size == 0
    assert (TP, 0) in rig.partitions.restarted
