"""The check of chaos histories: it finds every kind of fault, and none in a correct history."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.history import Batch, Ended, Event, HistoryFile, Outcome, Read, Replica, SendResult, Sent, load
from tests.support.history_check import SHOWN_MAX, Fault, Kind, check, report
from tests.support.history_simulation import random_history

DONE, UNDONE, UNKNOWN = Outcome.DONE, Outcome.UNDONE, Outcome.UNKNOWN


class Story:
    """A correct history of two partitions, which tests add faults to.

    Writer w sends single values, writer t transactions x (committed), y (aborted) and z (no response; committed).
    """

    def __init__(self) -> None:
        self.writes: list[Event] = [
            *(Sent("w", "a", 0), Sent("w", "b", 0), SendResult("a", DONE, 0, 0), SendResult("b", DONE, 0)),
            *(Sent("w", "late", 1), SendResult("late", UNKNOWN), Sent("w", "no", 1), SendResult("no", UNDONE)),
            *(Sent("t", "x0", 0, "x"), Sent("t", "x1", 1, "x"), Ended("x", DONE)),
            *(Sent("t", "y0", 0, "y"), Sent("t", "y1", 1, "y"), Ended("y", UNDONE)),
            *(Sent("t", "z0", 0, "z"), Sent("t", "z1", 1, "z"), Ended("z", UNKNOWN)),
        ]
        # Between them are the markers.
        self.everything = {0: {0: "a", 1: "b", 2: "x0", 4: "y0", 6: "z0"}, 1: {0: "late", 1: "x1", 3: "y1", 5: "z1"}}
        self.committed = {0: {0: "a", 1: "b", 2: "x0", 6: "z0"}, 1: {0: "late", 1: "x1", 5: "z1"}}
        self.ends = {0: 8, 1: 7}
        self.live = [
            Read("early", True, 0, ((0, "a"), (1, "b")), 3),
            Read("early", True, 0, ((2, "x0"),), 8),
            Read("greedy", False, 0, ((0, "a"), (1, "b"), (2, "x0"), (4, "y0")), 5),
        ]
        batches = (Batch(0, 1, 0, "ab"), Batch(2, 2, 0, "x"), Batch(3, 3, 4, "marker"))
        self.replicas: dict[int, tuple[Batch, ...]] = dict.fromkeys((1, 2, 3), batches)

    def events(self) -> list[Event]:
        final: list[Event] = [
            Read("last", is_committed, partition, tuple(sorted(records.items())), self.ends[partition], final=True)
            for is_committed, read in ((True, self.committed), (False, self.everything))
            for partition, records in read.items()
        ]
        return [*self.writes, *self.live, *final, *(Replica(b, 0, batches) for b, batches in self.replicas.items())]

    def put(self, partition: int, offset: int, value: str, *, aborted: bool = False) -> None:
        """Add a value to the final reads."""
        self.everything[partition][offset] = value
        if not aborted:
            self.committed[partition][offset] = value

    def drop(self, partition: int, offset: int) -> None:
        """Remove an offset from the final reads."""
        self.everything[partition].pop(offset)
        self.committed[partition].pop(offset, None)


def test_a_correct_history_has_no_faults() -> None:
    assert check(Story().events()) == []


def lost_value(story: Story) -> None:
    story.writes += [Sent("w", "c", 0), SendResult("c", DONE, 0, 8)]


def lost_value_of_unknown_offset(story: Story) -> None:
    story.writes += [Sent("w", "c", 0), SendResult("c", DONE)]


def lost_transaction(story: Story) -> None:
    story.writes += [Sent("t", "q0", 0, "q"), Sent("t", "q1", 1, "q"), Ended("q", DONE)]


def hidden_value(story: Story) -> None:
    story.committed[1].pop(0)


def twice_in_a_partition(story: Story) -> None:
    story.put(1, 6, "late")


def twice_in_two_partitions(story: Story) -> None:
    story.writes += [Sent("w", "anywhere")]
    story.put(0, 8, "anywhere")
    story.put(1, 8, "anywhere")


def aborted_is_read_in_the_end(story: Story) -> None:
    story.committed[0][4] = "y0"


def aborted_is_read_on_the_way(story: Story) -> None:
    story.live.append(Read("early", True, 1, ((3, "y1"),)))


def undecided_is_read_and_then_aborted(story: Story) -> None:
    story.committed[0].pop(6)
    story.committed[1].pop(5)
    story.live.append(Read("early", True, 1, ((5, "z1"),)))


def torn_committed(story: Story) -> None:
    story.committed[1].pop(1)


def torn_of_unknown_outcome(story: Story) -> None:
    story.drop(1, 5)


def later_before_earlier(story: Story) -> None:
    story.writes += [Sent("w", "c", 1), Sent("w", "d", 1)]
    story.put(1, 7, "d")
    story.put(1, 8, "c")


def another_value_for_a_reader(story: Story) -> None:
    story.writes += [Sent("w", "c", 0)]
    story.live.append(Read("greedy", False, 0, ((6, "c"),)))


def record_gone_after_a_read(story: Story) -> None:
    story.writes += [Sent("w", "c", 0)]
    story.live.append(Read("greedy", False, 0, ((9, "c"),)))


def elsewhere_than_acknowledged(story: Story) -> None:
    story.writes[2] = SendResult("a", DONE, 0, 1)


def a_reader_gets_an_offset_again(story: Story) -> None:
    story.live.append(Read("early", True, 0, ((1, "b"),)))


def the_end_moves_back(story: Story) -> None:
    story.live.append(Read("early", True, 0, (), 9))


def never_sent(story: Story) -> None:
    story.put(0, 8, "who?")


def sent_elsewhere(story: Story) -> None:
    story.writes += [Sent("w", "c", 0)]
    story.put(1, 8, "c")


def refused_and_there(story: Story) -> None:
    story.put(1, 8, "no")


def other_bytes(story: Story) -> None:
    first, second, third = story.replicas[2]
    story.replicas[2] = (first, second._replace(digest="y"), third)


def other_epoch(story: Story) -> None:
    first, second, third = story.replicas[3]
    story.replicas[3] = (first, second, third._replace(leader_epoch=5))


def shorter_replica(story: Story) -> None:
    story.replicas[1] = story.replicas[1][:-1]


def never_read(story: Story) -> None:
    del story.committed[1]
    story.writes = [event for event in story.writes if getattr(event, "transaction", None) is None]
    story.everything, story.committed = {0: {0: "a", 1: "b"}}, {0: {0: "a", 1: "b"}}
    story.live = []


PLANTED: list[tuple[Kind, Callable[[Story], None], str]] = [
    (Kind.LOST, lost_value, "'c' was acknowledged at 0@8"),
    (Kind.LOST, lost_value_of_unknown_offset, "'c' was acknowledged, but is not visible"),
    (Kind.LOST, lost_transaction, "transaction q was committed; none of its 2 values"),
    (Kind.LOST, hidden_value, "'late' is at 1@0, but is not visible to read_committed"),
    (Kind.DUPLICATE, twice_in_a_partition, "'late' is at 1@0, 1@6"),
    (Kind.DUPLICATE, twice_in_two_partitions, "'anywhere' is at 0@8, 1@8"),
    (Kind.ABORTED_READ, aborted_is_read_in_the_end, "last read 'y0' at 0@4; its transaction y was aborted"),
    (Kind.ABORTED_READ, aborted_is_read_on_the_way, "early read 'y1' at 1@3"),
    (Kind.ABORTED_READ, undecided_is_read_and_then_aborted, "early read 'z1' at 1@5"),
    (Kind.TORN, torn_committed, "transaction x: 1 of 2 values are missing: 'x1'"),
    (Kind.TORN, torn_of_unknown_outcome, "transaction z: 1 of 2 values are missing: 'z1'"),
    (Kind.REORDERED, later_before_earlier, "'c' of w comes after 'd' in partition 1"),
    (Kind.CHANGED, another_value_for_a_reader, "greedy read 'c' at 0@6; the final read has 'z0'"),
    (Kind.CHANGED, record_gone_after_a_read, "greedy read 'c' at 0@9; the final read has nothing"),
    (Kind.CHANGED, elsewhere_than_acknowledged, "'a' was acknowledged at 0@1, and is at 0@0"),
    (Kind.WENT_BACK, a_reader_gets_an_offset_again, "early got 0@1 after 2"),
    (Kind.WENT_BACK, the_end_moves_back, "early got high watermark 9 of partition 0; it ends at 8"),
    (Kind.PHANTOM, never_sent, "last read 'who?' at 0@8; it was not sent"),
    (Kind.PHANTOM, sent_elsewhere, "last read 'c' at 1@8; it was for 0"),
    (Kind.PHANTOM, refused_and_there, "last read 'no' at 1@8; it had been refused"),
    (Kind.DIVERGED, other_bytes, "partition 0 on brokers 1 and 2: Batch(base_offset=2"),
    (Kind.DIVERGED, other_epoch, "partition 0 on brokers 1 and 3: Batch(base_offset=3"),
    (Kind.DIVERGED, shorter_replica, "only one of them has Batch(base_offset=3"),
    (Kind.INCOMPLETE, never_read, "no final read of committed records of partition 1"),
]


@pytest.mark.parametrize(("kind", "plant", "text"), PLANTED, ids=[plant.__name__ for _, plant, _ in PLANTED])
def test_each_kind_of_fault_is_found_and_described(kind: Kind, plant: Callable[[Story], None], text: str) -> None:
    story = Story()
    plant(story)
    faults = check(story.events())
    assert {fault.kind for fault in faults} == {kind}, faults
    assert any(text in fault.text for fault in faults), faults


def test_every_kind_of_fault_has_a_test() -> None:
    assert {kind for kind, _, _ in PLANTED} == set(Kind)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, (1 << 32) - 1), st.integers(1, 120))
def test_a_random_correct_history_has_no_faults(seed: int, steps: int) -> None:
    assert check(random_history(random.Random(seed), steps)) == []


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, (1 << 32) - 1), st.randoms(use_true_random=False))
def test_a_record_missing_from_the_final_reads_is_reported_as_lost(seed: int, rng: random.Random) -> None:
    events = random_history(random.Random(seed), 60)
    facts = {event.value: event for event in events if isinstance(event, Sent)}
    acknowledged = [e.value for e in events if isinstance(e, SendResult) and e.outcome is DONE]
    plain = [value for value in acknowledged if facts[value].transaction is None]
    if not plain:
        return
    victim = rng.choice(plain)
    incomplete = [_without(event, victim) for event in events]
    assert Kind.LOST in {fault.kind for fault in check(incomplete)}


def _without(event: Event, value: str) -> Event:
    if not isinstance(event, Read) or not event.final:
        return event
    records = tuple(record for record in event.records if record[1] != value)
    return Read(event.reader, event.committed, event.partition, records, event.high_watermark, final=True)


def test_a_history_with_a_value_sent_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'a' was sent twice"):
        check([Sent("w", "a"), Sent("w", "a")])


def test_a_history_is_the_same_after_writing_and_loading(tmp_path: Path) -> None:
    events = random_history(random.Random(1), 100)
    with HistoryFile(tmp_path / "history.jsonl") as file:
        for event in events:
            file.add(event)
    assert list(load(tmp_path / "history.jsonl")) == events


def test_a_report_counts_all_faults_and_shows_some() -> None:
    assert report([]) == "no faults"
    many = [Fault(Kind.LOST, str(number)) for number in range(SHOWN_MAX + 5)]
    lines = report(many).splitlines()
    assert lines[0] == f"lost write: {SHOWN_MAX + 5}"
    assert len(lines) == SHOWN_MAX + 2
