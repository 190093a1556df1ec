"""Share groups (KIP-932): records that several members of a group take from a partition, each with a lock.

    in_flight.py            the records of a partition between its start and end offset: states, counts, locks
    partition.py            a partition in a share group, on its leader: acquire, acknowledge, release, persist
    manager.py, fetching.py the share partitions of this broker, and fetches that wait
    sessions.py             share sessions of members
    state.py, records.py    the persisted state of a share partition, and its records in __share_group_state
    coordinator.py          the share coordinator: that state, in the partitions that this broker leads
    state_store.py          the state of any share partition, here or on another broker

The members of share groups are at the group coordinator (`groups/share_*.py`).
"""
