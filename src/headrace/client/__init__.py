"""Sockets: everything between a request and the bytes on a broker's port.

addresses.py   bootstrap.servers → host and port → the addresses that DNS gives
tls.py         certificates → context; handshake and gather writes on a non-blocking socket
credentials.py sasl.* options → a mechanism for each connection
connection.py  one socket: set-up, outgoing bytes, requests in flight
network.py     the selector loop over all connections
metadata.py    which broker leads which partition
blocking.py    ask and wait: any node, the controller, a coordinator, the leaders of partitions
offsets.py     the first offset, the last, the one of a time
fetch_data.py  what a fetch brought, and what of it a reader may see
fetcher.py     reading partitions, as records or in columns
admin/         topics, configurations, groups, transactions
facts/         what several answers come to, for the command line and the live view
"""
