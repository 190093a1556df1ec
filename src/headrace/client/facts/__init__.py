"""What there is to know of a cluster, put together from several answers: for the command line and for the live view.

    partitions.py    partitions by name, and how far each of them reaches
    topics.py        topics: partitions, sizes, options
    groups.py        groups: members, committed offsets, lag in records
    lag_times.py     lag in time
    resets.py        what resetting the offsets of a group comes to
    transactions.py  transactions under way, and what they hold back
    history.py       the steps that a transactional id has gone through
    hanging.py       transactions that nobody will end, and ending them
    filters.py       which records somebody wants to see
    times.py         points and spans of time, as people write and read them

Nothing here prints, asks the user, or knows of flags.
"""
