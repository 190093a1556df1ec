"""The network server: from sockets to handlers and back.

listener.py    the option `listeners` and related ones: addresses to bind and to advertise
acceptor.py    accepting connections within the limit of file descriptors
limits.py      limits on connections, which can be changed at run time
server.py      all connections: limits, idle timeouts, shutdown
connection.py  one connection: bytes → frames → one request at a time → bytes, with back-pressure in both directions
sender.py      writing responses to a socket
dispatch.py    frame → header → request → handler → response → buffers
"""
