"""Queries that combine several responses, for the command line and the live view.

    topics.py        topics: partitions, sizes, options; start and end offsets
    groups.py        groups: members, committed offsets, lag; resets of offsets
    transactions.py  open and hanging transactions; the history of a transactional id

Nothing here prints, prompts the user, or knows command-line flags.
"""
