"""The consumer: records of Kafka's topics, one by one or as Arrow columns, alone or as a member of a group.

consumer.py, aio.py    the public API
engine.py              one consumer's parts, and its I/O thread
partitions.py          assigned partitions: position, fetched data
fetch_loop.py          fetches: requests, sessions, responses                (I/O thread)
offset_lookups.py      positions without an offset: reset, validation        (I/O thread)
coordinator.py         the group's coordinator: commits, committed offsets   (I/O thread)
membership.py          the classic group protocol                            (I/O thread)
epoch_membership.py    the group protocol of KIP-848                         (I/O thread)
assignors.py           range, roundrobin, sticky, cooperative-sticky
"""
