"""A group.id that a group of another kind has: a named error, at once, and the broker is not flooded with requests."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from headrace import BrokerError, Consumer, InconsistentGroupProtocolError, ShareConsumer
from headrace.errors import Code
from tests.support.polling import SECONDS_MAX, fill, poll_until
from tests.support.topics import unique

RACE_SECONDS = 1.0


def open_consumer(broker, group: str, protocol: str) -> Consumer:
    return Consumer(bootstrap_servers=broker.bootstrap, group_id=group, group_protocol=protocol)


def until_error(poll: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        poll()


@pytest.fixture
def share_group(quick):
    """Return the id of a share group, and a topic."""
    topic, group = fill(quick, 1, 1), unique("share")
    with ShareConsumer(bootstrap_servers=quick.bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        consumer.poll(RACE_SECONDS)
    return group, topic


@pytest.mark.behaviour("C10")
def test_a_classic_member_in_a_share_group_is_an_error_with_a_remedy(quick, share_group):
    group, topic = share_group
    with open_consumer(quick, group, "classic") as consumer:
        consumer.subscribe([topic])
        with pytest.raises(InconsistentGroupProtocolError, match=r"is of another kind.*use another group\.id"):
            poll_until(lambda: False, consumer)


@pytest.mark.behaviour("C10")
def test_a_member_of_the_consumer_protocol_in_a_share_group_is_an_error_with_a_remedy(quick, share_group):
    group, topic = share_group
    with open_consumer(quick, group, "consumer") as consumer:
        consumer.subscribe([topic])
        with pytest.raises(BrokerError, match=r"not a consumer group; use another group\.id") as raised:
            poll_until(lambda: False, consumer)
    assert raised.value.code == Code.GROUP_ID_NOT_FOUND


@pytest.mark.behaviour("C10")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_share_consumer_in_a_consumer_group_is_an_error_with_a_remedy(quick, protocol):
    topic, group = fill(quick, 1, 1), unique("group")
    with (
        open_consumer(quick, group, protocol) as member,
        ShareConsumer(bootstrap_servers=quick.bootstrap, group_id=group) as consumer,
    ):
        member.subscribe([topic])
        poll_until(member.assignment, member)
        consumer.subscribe([topic])
        with pytest.raises(BrokerError, match=r"use another group\.id") as raised:
            until_error(lambda: consumer.poll(0.1))
        assert raised.value.code == Code.GROUP_ID_NOT_FOUND
        assert member.poll(0.1) is not None
        assert member.assignment()
