"""Sockets: everything between a request and the bytes on a broker's port.

addresses.py   bootstrap.servers → host and port → the addresses that DNS gives
tls.py         certificates → context; handshake and gather writes on a non-blocking socket
sasl.py        who we are: PLAIN, SCRAM, OAUTHBEARER as state machines without I/O
credentials.py sasl.* options → a mechanism for each connection
connection.py  one socket: set-up, outgoing bytes, requests in flight
network.py     the selector loop over all connections
metadata.py    which broker leads which partition
"""
