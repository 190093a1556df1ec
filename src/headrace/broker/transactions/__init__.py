"""The transaction coordinator.

    handlers → coordinator ─→ store ─→ __transaction_state      a transition is logged before it is applied to memory
                   │            ↑ replay (load)
                   ├→ markers ─→ partitions of the transaction  markers are retried until they are written
                   ├→ expiry    transaction timeouts, unused transactional ids
                   └→ producer_ids

The state machine is in `transaction`, without I/O; the records of the log are in `log_records`.
"""
