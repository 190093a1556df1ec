"""The client layer: everything between a request and a broker's socket.

addresses.py    bootstrap.servers → host and port → socket addresses
tls.py          certificates → context; handshake and writes on a non-blocking socket
credentials.py  sasl.* options → a mechanism for each connection
connection.py   a socket: set-up, outgoing bytes, requests in flight
network.py      the selector loop over all connections
metadata.py     brokers, topics and leaders
blocking.py     blocking requests: to any node, the controller, a coordinator, the leaders of partitions
offsets.py      ListOffsets
fetch_data.py   the data of a fetch, and the part of it that a reader sees
fetcher.py      reading partitions, as records or in columns
concurrency.py  locks and events that are safe with signal handlers
admin/          topics, configurations, groups, transactions
queries/        several responses combined, for the command line and the live view
registry.py     schema registries; registry_http.py: requests to them
serde.py        keys and values with schemas: schema_decoder.py, schema_encoder.py; caches.py: what they keep
text_formats.py text forms of times, durations and record filters
"""
