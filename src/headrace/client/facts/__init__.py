"""Facts about a cluster, combined from several responses, for the command line and the live view.

    partitions.py    existing partitions, and their start and end offsets
    topics.py        topics: partitions, sizes, options
    groups.py        groups: members, committed offsets, lag in records
    lag_times.py     lag in time
    resets.py        planning a reset of a group's offsets
    transactions.py  open transactions, and the records that wait for them
    history.py       the state transitions of a transactional id
    hanging.py       hanging transactions
    filters.py       record filters
    times.py         parsing and formatting of times and durations

Nothing here prints, prompts the user, or knows command-line flags.
"""
