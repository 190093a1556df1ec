"""Consumer groups: membership, assignments and committed offsets.

    handlers → coordinator → shard (one for each partition of __consumer_offsets)
                                 ├ groups     classic: members and generations: joining, rebalance, group
                                 ├ consumer   KIP-848: members and epochs: consumer_heartbeats, consumer_update,
                                 │            consumer_group; classic_members and migration between both
                                 ├ offsets    committed, and pending in open transactions
                                 └ write      append a record to the log, then change memory, in log order

A shard is rebuilt by replaying its partition. Offsets change through the same functions live and in replay; groups
change immediately before or after their record is written. Both therefore end in the same state.
"""

from headrace.broker.groups.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
