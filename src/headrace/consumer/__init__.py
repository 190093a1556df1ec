"""The consumer: records of Kafka's topics, one by one or as Arrow columns, alone or as a member of a group.

consumer.py, aio.py   the public API
engine.py             one consumer's parts; io_engine.py: its I/O thread, as that of share_engine.py
partitions.py         assigned partitions: position, fetched data
reader.py             fetched data to records and columns        (application thread)
deserialization.py    keys and values of these; bad records      (application thread)
deserializers.py      deserializers; column_deserializers.py, schema_deserializers.py
interceptors.py       user code that sees records and commits    (application thread)
metrics.py            Kafka's metrics
iteration.py          records one by one                         (application thread)
rebalances.py         the listener, and new partitions           (application thread)
fetching.py           fetches: requests, sessions, responses     (I/O thread)
positions.py          the first offset of a partition            (I/O thread)
offset_lookups.py     offsets by time and epoch                  (I/O thread)
group.py              subscription and commits
coordinator.py        requests to the coordinator of the group   (I/O thread)
membership.py         the classic group protocol                 (I/O thread)
share_consumer.py     the public API of share groups; share_engine.py and share_session.py: its I/O thread
assignors.py          range, roundrobin, sticky, cooperative-sticky
"""
