"""Elections and reassignments as a pure function."""

from __future__ import annotations

import pytest

from headrace.broker.catalog.topics import NO_LEADER, PartitionRegistration
from headrace.broker.cluster.elections import (
    Election,
    ElectionRules,
    PartitionChange,
    apply_change,
    begin_reassignment,
    cancel_reassignment,
)

WHOLE = PartitionRegistration((1, 2, 3), (1, 2, 3), 1, 5, partition_epoch=7)


def rules(*alive: int, min_isr: int = 2, election: Election = Election.ONLINE) -> ElectionRules:
    return ElectionRules(lambda node: node in alive, min_isr, election)


def after(
    partition: PartitionRegistration, election_rules: ElectionRules, change: PartitionChange | None = None
) -> PartitionRegistration:
    target = apply_change(partition, election_rules, change or PartitionChange())
    assert target is not None
    return target


def test_a_healthy_partition_does_not_change() -> None:
    assert apply_change(WHOLE, rules(1, 2, 3)) is None


def test_the_next_in_sync_replica_replaces_a_leader() -> None:
    target = after(WHOLE, rules(2, 3), PartitionChange(isr=(2, 3)))
    assert target == PartitionRegistration((1, 2, 3), (2, 3), 2, 6, partition_epoch=8)


def test_a_replica_outside_the_in_sync_set_is_not_elected() -> None:
    partition = PartitionRegistration((1, 2, 3), (1, 3), 1, 0)
    assert after(partition, rules(2, 3), PartitionChange(isr=(3,))).leader == 3


def test_a_leaving_follower_changes_neither_leader_nor_leader_epoch() -> None:
    target = after(WHOLE, rules(1, 2), PartitionChange(isr=(1, 2)))
    assert (target.leader, target.leader_epoch, target.partition_epoch, target.elr) == (1, 5, 8, ())


def test_a_replica_that_leaves_a_small_in_sync_set_stays_eligible() -> None:
    two_left = after(WHOLE, rules(2, 3), PartitionChange(isr=(2, 3)))
    one_left = after(two_left, rules(3), PartitionChange(isr=(3,)))
    assert (one_left.leader, one_left.isr, one_left.elr) == (
        3,
        (3,),
        (2,),
    )  # not 1: it left before records that two replicas may have acknowledged
    none_left = after(one_left, rules(), PartitionChange(isr=()))
    assert (none_left.leader, none_left.isr, none_left.elr, none_left.last_known_elr) == (NO_LEADER, (), (2, 3), (3,))
    assert apply_change(none_left, rules(1)) is None  # it may lack committed records
    back_again = after(none_left, rules(1, 2))
    assert (back_again.leader, back_again.isr, back_again.elr) == (2, (2,), (3,))
    assert back_again.leader_epoch == none_left.leader_epoch + 1
    enough = after(back_again, rules(1, 2, 3), PartitionChange(isr=(2, 3)))
    assert (enough.isr, enough.elr, enough.last_known_elr) == ((2, 3), (), ())


def test_with_min_isr_1_only_the_last_replica_is_eligible() -> None:
    one_left = after(WHOLE, rules(1, min_isr=1), PartitionChange(isr=(1,)))
    assert one_left.elr == ()
    none_left = after(one_left, rules(min_isr=1), PartitionChange(isr=()))
    assert (none_left.leader, none_left.elr) == (NO_LEADER, (1,))


def test_the_last_replica_with_a_lost_tail_is_not_elected() -> None:
    last = PartitionRegistration((1, 2, 3), (), NO_LEADER, 4, elr=(3,), last_known_elr=(3,))
    lost = after(last, rules(3), PartitionChange(isr=(), distrusted=(3,)))
    assert (lost.leader, lost.isr, lost.elr, lost.last_known_elr) == (NO_LEADER, (), (), (3,))
    assert apply_change(lost, rules(1, 2, 3)) is None
    allowed = after(lost, rules(1, 2, 3, election=Election.UNCLEAN))
    assert (allowed.leader, allowed.isr) == (3, (3,))  # the last leader


def test_an_unclean_election_is_the_last_resort() -> None:
    partition = PartitionRegistration((1, 2, 3), (1,), 1, 0)
    clean = after(WHOLE, rules(2, 3, election=Election.UNCLEAN), PartitionChange(isr=(2, 3)))
    assert (clean.leader, clean.isr) == (2, (2, 3))
    unclean = after(partition, rules(3, election=Election.UNCLEAN), PartitionChange(isr=()))
    assert (unclean.leader, unclean.isr, unclean.elr) == (3, (3,), ())
    assert after(partition, rules(3), PartitionChange(isr=())).leader == NO_LEADER


def test_a_preferred_election_elects_the_first_replica_if_in_sync() -> None:
    partition = PartitionRegistration((1, 2, 3), (2, 1), 2, 3)
    preferred = after(partition, rules(1, 2, 3, election=Election.PREFERRED))
    assert (preferred.leader, preferred.leader_epoch) == (1, 4)
    behind = PartitionRegistration((1, 2, 3), (2, 3), 2, 3)
    assert apply_change(behind, rules(1, 2, 3, election=Election.PREFERRED)) is None


def test_a_restarted_leader_leads_in_a_new_epoch() -> None:
    assert after(WHOLE, rules(1, 2, 3), PartitionChange(new_epoch=True)).leader_epoch == 6


def test_a_reassignment_adds_replicas_before_it_removes_others() -> None:
    everybody = rules(1, 2, 3, 4, 5)
    begun = after(WHOLE, everybody, begin_reassignment(WHOLE, (4, 5, 3)))
    assert begun.replicas == (4, 5, 3, 1, 2)
    assert (begun.adding, begun.removing, begun.isr, begun.leader) == ((4, 5), (1, 2), (1, 2, 3), 1)
    half = after(begun, everybody, PartitionChange(isr=(1, 2, 3, 4)))
    assert (half.replicas, half.adding) == ((4, 5, 3, 1, 2), (4, 5))
    done = after(half, everybody, PartitionChange(isr=(1, 2, 3, 4, 5)))
    assert (done.replicas, done.adding, done.removing) == ((4, 5, 3), (), ())
    assert set(done.isr) == {3, 4, 5}
    assert (done.leader, done.leader_epoch) == (4, begun.leader_epoch + 1)


def test_a_reassignment_of_the_order_completes_at_once() -> None:
    done = after(WHOLE, rules(1, 2, 3), begin_reassignment(WHOLE, (3, 2, 1)))
    assert (done.replicas, done.leader, done.leader_epoch) == ((3, 2, 1), 1, 5)


def test_a_reassignment_can_be_cancelled() -> None:
    everybody = rules(1, 2, 3, 4)
    begun = after(WHOLE, everybody, begin_reassignment(WHOLE, (4, 2, 3)))
    caught_up = after(begun, rules(1, 2, 3, 4), PartitionChange(isr=(1, 2)))
    given_up = after(caught_up, everybody, cancel_reassignment(caught_up))
    assert set(given_up.replicas) == {1, 2, 3}
    assert (given_up.adding, given_up.removing, given_up.leader) == ((), (), 1)


@pytest.mark.parametrize("target", [(4, 5, 6), (1, 2, 4)])
def test_a_running_reassignment_can_be_replaced(target: tuple[int, ...]) -> None:
    everybody = rules(1, 2, 3, 4, 5, 6)
    begun = after(WHOLE, everybody, begin_reassignment(WHOLE, (4, 5, 3)))
    other = after(begun, everybody, begin_reassignment(begun, target))
    assert other.replicas[:3] == target
    assert set(other.adding) == set(target) - {1, 2, 3}
    done = after(other, everybody, PartitionChange(isr=tuple(dict.fromkeys((*other.isr, *target)))))
    assert (done.replicas, done.adding, done.removing) == (target, (), ())
    assert done.leader in target
