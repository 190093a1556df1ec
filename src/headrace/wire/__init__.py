"""Encoding and decoding of Kafka's messages, record batches and the older message sets.

Nothing here uses sockets, threads or clocks.

    schema.py           declares a message once for all its versions
    api/                the messages, and the API keys
    internal_topics.py  records and partitions of __transaction_state
    framing.py          received bytes → frames
    frames.py           size prefix and headers around a message
    layout.py           types that the kernels and their callers share
    records.py          record batches (magic 2), record by record
    columns.py          record batches from and to Arrow columns
    legacy.py           message sets (magic 0 and 1)
    compression.py      the four codecs, in Kafka's framing
    sasl.py             the client side of PLAIN, SCRAM and OAUTHBEARER
    kernel.py           selects the compiled kernel (_kernel) or the Python reference (_reference)
    primitives.py       varints
"""
