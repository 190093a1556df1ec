"""From sockets to handlers and back.

listener.py    `listeners` and its kin → where to listen, and what to tell clients
server.py      all connections: accepting, limits, idle ones, a clean stop
connection.py  one of them: bytes → frames → one request at a time → bytes, with back-pressure on both sides
sending.py     its way out
dispatch.py    a frame → header → message → handler → answer → a gather list
"""
