"""A Kafka broker: one process, one event loop, logs on disk.

socket → server → handlers (one file an API key) → replicas → log
                      │
                      └→ transactions, groups (their state lives in internal topics), catalog (its own journal)
"""
