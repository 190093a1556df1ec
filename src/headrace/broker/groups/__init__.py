"""Consumer groups: who is in one, who has which partitions, and how far each has read.

    handlers → coordinator → shard (one a partition of __consumer_offsets)
                                 ├ groups     members and generations: joining, rebalance, group
                                 ├ offsets    committed ones, and those of open transactions
                                 └ write      a record in the log first, then memory, in the order of the log

What a shard knows is rebuilt by replaying its partition. Memory changes by the same functions live and in replay
(offsets), or right before and after the record that says so (groups), so that both come out equal.
"""

from headrace.broker.groups.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
