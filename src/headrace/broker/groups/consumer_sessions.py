"""The timeouts of the members of consumer groups, and the removal of members.

    session      no heartbeat for the session timeout
    revocation   a member of the consumer protocol does not revoke partitions within its rebalance timeout
    join, sync   a classic member does not rejoin, or does not fetch its assignment, within its rebalance timeout

A member that times out is fenced: it is removed, and the next heartbeat of another member starts an assignment without
it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Literal

from headrace.broker.groups.consumer_group import ConsumerGroup
from headrace.broker.groups.consumer_member import ConsumerMember
from headrace.broker.groups.consumer_settings import ConsumerSettings
from headrace.broker.groups.consumer_update import GroupUpdate
from headrace.broker.groups.migration import can_downgrade, downgrade, downgrade_records
from headrace.broker.groups.rebalance import Rebalances
from headrace.broker.groups.shard import Shard
from headrace.errors import BrokerError

log = logging.getLogger("headrace.broker.groups")

FENCING_RETRY_MS = 500
"""When to retry the removal of a member whose records could not be written."""

Timeout = Literal["session", "revocation", "join", "sync"]
TIMEOUTS: tuple[Timeout, ...] = ("session", "revocation", "join", "sync")


class ConsumerSessions:
    """Runs the timeouts of a shard's consumer groups."""

    def __init__(self, shard: Shard, rebalances: Rebalances, settings: ConsumerSettings) -> None:
        self._shard = shard
        self._rebalances = rebalances
        self._settings = settings

    def keep_alive(self, group_id: str, member: ConsumerMember) -> None:
        """Restart the session timeout of a member."""
        if member.classic is None:
            timeout_ms = self._settings.times_of(group_id).session_timeout_ms
        else:
            timeout_ms = member.classic.session_timeout_ms
        self._schedule("session", group_id, member, timeout_ms)

    def expect_revocation(self, group_id: str, member: ConsumerMember) -> None:
        """Start the revocation timeout if a member has to revoke partitions, else stop it."""
        if member.classic is not None:
            return  # has timeouts for join and sync
        if GroupUpdate.has_to_revoke(member):
            self._schedule("revocation", group_id, member, member.rebalance_timeout_ms)
        else:
            self.cancel("revocation", group_id, member.id)

    def expect_join(self, group_id: str, member: ConsumerMember) -> None:
        """Expect a classic member to rejoin, unless that is expected already."""
        if _key("join", group_id, member.id) not in self._shard.timers:
            self._schedule("join", group_id, member, member.rebalance_timeout_ms)

    def expect_sync(self, group_id: str, member: ConsumerMember) -> None:
        """Expect a classic member that has joined to fetch its assignment."""
        self.cancel("join", group_id, member.id)
        self._schedule("sync", group_id, member, member.rebalance_timeout_ms)

    def cancel(self, timeout: Timeout, group_id: str, member_id: str) -> None:
        self._shard.timers.cancel(_key(timeout, group_id, member_id))

    def take_over(self) -> None:
        """Start the sessions of all loaded members."""
        for group in self._shard.consumer_groups.values():
            self.start(group)

    def start(self, group: ConsumerGroup) -> None:
        """Start the sessions of all members of a group."""
        for member in group.members.values():
            self.keep_alive(group.id, member)
            self.expect_revocation(group.id, member)

    def _schedule(self, timeout: Timeout, group_id: str, member: ConsumerMember, delay_ms: int) -> None:
        key = _key(timeout, group_id, member.id)
        self._shard.timers.schedule(key, delay_ms, self._on_timeout, timeout, group_id, member.id, member.epoch)

    def _on_timeout(self, timeout: Timeout, group_id: str, member_id: str, epoch: int) -> None:
        self._shard.spawn(self._fence(timeout, group_id, member_id, epoch))

    async def _fence(self, timeout: Timeout, group_id: str, member_id: str, epoch: int) -> None:
        async with self._shard.exclusive(group_id):
            group = self._shard.consumer_groups.get(group_id)
            member = group.members.get(member_id) if group is not None else None
            if group is None or member is None or _key(timeout, group_id, member_id) in self._shard.timers:
                return  # it has left, or a heartbeat came first
            if timeout == "revocation" and member.epoch != epoch:
                return
            log.info("group %r: the %s timeout of member %r is over", group_id, timeout, member_id)
            try:
                await self.remove(group, [member])
            except BrokerError as error:
                log.warning("group %r: failed to remove member %r, will retry: %s", group_id, member_id, error)
                self._schedule(timeout, group_id, member, FENCING_RETRY_MS)

    async def remove(self, group: ConsumerGroup, members: Collection[ConsumerMember]) -> None:
        """Remove members; the group becomes classic if only classic members are left. Needs `Shard.exclusive`."""
        leaving = {member.id for member in members}
        update = GroupUpdate(self._shard, self._settings, group)
        if can_downgrade(group, self._settings, leaving):
            left = [member for member in group.members.values() if member.id not in leaving]
            await self.make_classic(group, left, update, reason="the last member with the consumer protocol has left")
        else:
            update.remove_members(members)
            await update.commit()
        for member in members:
            self.cancel_all(group.id, member.id)

    def cancel_all(self, group_id: str, member_id: str) -> None:
        """Stop the timeouts of a member."""
        for timeout in TIMEOUTS:
            self.cancel(timeout, group_id, member_id)

    async def make_classic(
        self, group: ConsumerGroup, members: Collection[ConsumerMember], update: GroupUpdate, *, reason: str | None
    ) -> None:
        """Downgrade a group to these members, and rebalance if there is a reason to."""
        classic = downgrade(update.group, members, self._settings.topics, self._shard.clock.time_ms())

        def install(_: int) -> None:
            self._shard.replace_group(group.id, classic)
            for member in group.members:
                self.cancel_all(group.id, member)
            for classic_member in classic.members.values():
                self._rebalances.keep_alive(classic, classic_member)
            if reason is not None:
                self._rebalances.prepare(classic, reason)

        await self._shard.write(downgrade_records(group, classic), install)


def _key(timeout: Timeout, group_id: str, member_id: str) -> tuple[str, str, str]:
    return f"consumer-{timeout}", group_id, member_id
