"""The state machine of a member: every state, every relation to the target, every report of owned partitions."""

from __future__ import annotations

import pytest

from headrace.broker.groups.consumer_member import (
    ConsumerMember,
    MemberState,
    Target,
    TopicPartitionSets,
    reconcile,
)
from headrace.errors import BrokerError, Code

T, U = b"T" * 16, b"U" * 16
STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS


def member(state: MemberState, epoch: int, assigned: set[int], revoking: set[int] | None = None) -> ConsumerMember:
    return ConsumerMember(
        "m",
        state=state,
        epoch=epoch,
        previous_epoch=epoch - 1,
        assigned={T: dict.fromkeys(sorted(assigned), 3)} if assigned else {},
        revoking={T: dict.fromkeys(sorted(revoking), 3)} if revoking else {},
    )


def target(partitions: set[int], *, epoch: int = 8, taken: set[int] | None = None, subscribed: bool = True) -> Target:
    others = taken or set()
    return Target(
        epoch,
        {T: frozenset(partitions)} if partitions else {},
        {T} if subscribed else set(),
        lambda topic_id, index: index in others,
    )


def owns(*indexes: int) -> TopicPartitionSets:
    return {T: frozenset(indexes)}


@pytest.mark.parametrize(
    ("before", "goal", "owned", "state", "epoch", "assigned", "revoking"),
    [
        # Nothing to do.
        (member(STABLE, 8, {0, 1}), target({0, 1}), None, STABLE, 8, {0, 1}, set()),
        # A new target without changes for the member.
        (member(STABLE, 7, {0, 1}), target({0, 1}), None, STABLE, 8, {0, 1}, set()),
        # Free partitions are assigned at once.
        (member(STABLE, 7, {0}), target({0, 1}), None, STABLE, 8, {0, 1}, set()),
        # Partitions of others are awaited, the others are assigned.
        (member(STABLE, 7, {0}), target({0, 1, 2}, taken={2}), None, UNRELEASED, 8, {0, 1}, set()),
        (member(STABLE, 7, {0}), target({0, 2}, taken={2}), None, UNRELEASED, 8, {0}, set()),
        # Partitions have to be revoked: the epoch stays.
        (member(STABLE, 7, {0, 1}), target({0}), None, UNREVOKED, 7, {0}, {1}),
        (member(STABLE, 7, {0, 1}), target({0}), owns(0, 1), UNREVOKED, 7, {0}, {1}),
        # Already revoked by the client.
        (member(STABLE, 7, {0, 1}), target({0}), owns(0), STABLE, 8, {0}, set()),
        # Revocation comes before assignment.
        (member(STABLE, 7, {0, 1}), target({0, 2}), None, UNREVOKED, 7, {0}, {1}),
        # Waits for the acknowledgement.
        (member(UNREVOKED, 7, {0}, {1}), target({0}), None, UNREVOKED, 7, {0}, {1}),
        (member(UNREVOKED, 7, {0}, {1}), target({0}), owns(0, 1), UNREVOKED, 7, {0}, {1}),
        (member(UNREVOKED, 7, {0}, {1}), target({0}), owns(0), STABLE, 8, {0}, set()),
        (member(UNREVOKED, 7, {0}, {1}), target({0, 2}, taken={2}), owns(0), UNRELEASED, 8, {0}, set()),
        # The target has changed meanwhile: the revoked partition comes back, or more has to be revoked.
        (member(UNREVOKED, 7, {0}, {1}), target({0, 1}, taken={1}), owns(0), STABLE, 8, {0, 1}, set()),
        (member(UNREVOKED, 7, {0, 2}, {1}), target({0}), owns(0, 2), UNREVOKED, 7, {0}, {2}),
        # Released partitions are assigned.
        (member(UNRELEASED, 8, {0}), target({0, 2}), None, STABLE, 8, {0, 2}, set()),
        (member(UNRELEASED, 8, {0}), target({0, 2}, taken={2}), None, UNRELEASED, 8, {0}, set()),
        # A topic of the target that the member has unsubscribed from is revoked.
        (member(STABLE, 7, {0}), target({0}, subscribed=False), owns(0), UNREVOKED, 7, set(), {0}),
    ],
)
def test_a_heartbeat_moves_a_member_towards_its_target(before, goal, owned, state, epoch, assigned, revoking):
    after = reconcile(before, goal, owned)
    assert (after.state, after.epoch) == (state, epoch)
    assert set(after.assigned.get(T, {})) == assigned
    assert set(after.revoking.get(T, {})) == revoking


def test_kept_partitions_keep_the_epoch_of_their_assignment():
    after = reconcile(member(STABLE, 7, {0}), target({0, 1}), None)
    assert after.assigned == {T: {0: 3, 1: 8}}
    assert after.previous_epoch == 7


def test_unsubscribed_topics_are_revoked_before_the_next_target():
    before = member(STABLE, 8, {0})
    after = reconcile(before, target({0}, subscribed=False), owns(0), has_changed_subscription=True)
    assert (after.state, after.assigned, set(after.revoking[T])) == (UNREVOKED, {}, {0})
    released = reconcile(before, target({0}, subscribed=False), {}, has_changed_subscription=True)
    assert (released.state, released.assigned, released.revoking) == (STABLE, {}, {})


def test_a_member_in_an_unknown_state_starts_again_without_partitions():
    before = member(MemberState.UNKNOWN, 7, {0})
    with pytest.raises(BrokerError) as raised:
        reconcile(before, target({0}), owns(0))
    assert raised.value.code == Code.FENCED_MEMBER_EPOCH
    assert reconcile(before, target({0}), {}).state is STABLE


@pytest.mark.parametrize(
    ("epoch", "owned", "is_accepted"),
    [
        (5, None, True),
        (0, {}, True),
        (4, owns(0), True),
        (4, owns(0, 9), False),
        (4, {U: frozenset({0})}, False),
        (4, None, False),
        (3, owns(0), False),
        (6, owns(0), False),
    ],
)
def test_only_the_current_epoch_and_a_repeated_request_are_accepted(epoch, owned, is_accepted):
    current = member(STABLE, 5, {0, 1})
    if is_accepted:
        current.check_epoch(epoch, owned)
        return
    with pytest.raises(BrokerError) as raised:
        current.check_epoch(epoch, owned)
    assert raised.value.code == Code.FENCED_MEMBER_EPOCH
