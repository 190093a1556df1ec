"""Bytes to objects and back: Kafka's messages, record batches and the older message sets.

Nothing in here knows a socket, a thread or a clock.

    schema.py      declares a message once for all its versions
    api/           the messages, a file for each API key
    framing.py     bytes of a peer to frames
    frames.py      size prefix and headers around a message
    records.py     record batch v2: appended one by one, from Arrow, to records, to Arrow
    legacy.py      message sets, magic 0 and 1
    compression.py the four codecs, as Kafka frames them
    sasl.py        who we are: PLAIN, SCRAM, OAUTHBEARER as state machines
    kernel.py      picks the compiled kernel or the Python reference
"""
