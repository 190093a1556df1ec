"""Transactions: who may write under a transactional id, what belongs to its transaction, and how that one ends.

    handlers → coordinator ─→ store ─→ __transaction_state      every step is in the log before it is in memory
                   │            ↑ replay (load)
                   ├→ markers ─→ partitions of the transaction  the decision is told, again and again if need be
                   ├→ expiry    time-outs, ids that nobody uses
                   └→ producer_ids

What a transaction is and which steps it may take is in `states` and `transaction`, without any I/O; how a step is
written down is in `log_records`.
"""
