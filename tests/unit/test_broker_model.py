"""The model that judges the broker must itself notice what is wrong."""

from __future__ import annotations

import pytest

from tests.support.broker_model import Model, Outcome, Transaction


@pytest.fixture
def model() -> Model:
    model = Model(1)
    model.sent([b"a", b"b"], None)
    model.acknowledge(0, 0, [b"a", b"b"])
    return model


def test_what_was_promised_is_accepted(model: Model) -> None:
    model.check_everything(0, {0: b"a", 1: b"b"})
    model.check_committed(0, {0: b"a", 1: b"b"})


def test_a_lost_record_is_noticed(model: Model) -> None:
    with pytest.raises(AssertionError, match="lost"):
        model.check_everything(0, {0: b"a"})


def test_another_record_at_a_promised_offset_is_noticed(model: Model) -> None:
    with pytest.raises(AssertionError, match="lost or changed"):
        model.check_everything(0, {0: b"a", 1: b"a"})


def test_a_record_that_is_there_twice_is_noticed(model: Model) -> None:
    with pytest.raises(AssertionError, match="is a duplicate"):
        model.check_everything(0, {0: b"a", 1: b"b", 2: b"b"})


def test_one_offset_for_two_records_is_noticed(model: Model) -> None:
    model.sent([b"c"], None)
    with pytest.raises(AssertionError, match="was given to"):
        model.acknowledge(0, 1, [b"c"])


def test_a_record_without_a_response_may_appear_once(model: Model) -> None:
    model.sent([b"c"], None)
    model.check_everything(0, {0: b"a", 1: b"b"})
    model.check_everything(0, {0: b"a", 1: b"b", 2: b"c"})
    with pytest.raises(AssertionError, match="lost"):
        model.check_everything(0, {0: b"a", 1: b"b"})
    with pytest.raises(AssertionError, match="is a duplicate"):
        model.check_everything(0, {0: b"a", 1: b"b", 2: b"c", 3: b"c"})


def test_a_refused_record_that_appears_is_noticed(model: Model) -> None:
    model.sent([b"c"], None)
    model.refuse([b"c"])
    with pytest.raises(AssertionError, match="refused"):
        model.check_everything(0, {0: b"a", 1: b"b", 2: b"c"})


@pytest.mark.parametrize(
    ("outcome", "seen", "right"),
    [
        (Outcome.COMMITTED, {0: b"a", 1: b"b", 2: b"t", 3: b"c"}, True),
        (Outcome.COMMITTED, {0: b"a", 1: b"b", 3: b"c"}, False),  # torn
        (Outcome.ABORTED, {0: b"a", 1: b"b", 3: b"c"}, True),
        (Outcome.ABORTED, {0: b"a", 1: b"b", 2: b"t", 3: b"c"}, False),  # an aborted read
        (Outcome.OPEN, {0: b"a", 1: b"b"}, True),
        (Outcome.OPEN, {0: b"a", 1: b"b", 2: b"t"}, False),  # read too early
        (Outcome.OPEN, {0: b"a", 1: b"b", 3: b"c"}, False),  # past the last stable offset
    ],
)
def test_readers_see_what_is_committed_up_to_the_first_open_transaction(
    model: Model, outcome: Outcome, seen: dict[int, bytes], right: bool
) -> None:
    model.sent([b"t"], Transaction(outcome))
    model.acknowledge(0, 2, [b"t"])
    model.sent([b"c"], None)
    model.acknowledge(0, 3, [b"c"])
    if right:
        model.check_committed(0, seen)
    else:
        with pytest.raises(AssertionError, match="committed"):
            model.check_committed(0, seen)
