"""The HTTP server of the schema registry: requests, limits, slow and hostile clients."""

from __future__ import annotations

import asyncio
import socket

import pytest

from headrace.broker.registry import http_server
from headrace.broker.registry.http_server import HttpRequest, HttpResponse, HttpServer

TEST_SECONDS_MAX = 20
OK = "HTTP/1.1 200 OK"


async def echo(request: HttpRequest) -> HttpResponse:
    text = f"{request.method} {'|'.join(request.path)} {request.query} {len(request.body)}"
    return HttpResponse(200, text.encode(), "text/plain")


def refuse(status: int, message: str) -> HttpResponse:
    return HttpResponse(status, message.encode(), "text/plain")


def serve(scenario, handler=echo):
    """Run a scenario with the port of a server."""

    async def run():
        server = HttpServer(handler, refuse)
        sock = socket.create_server(("127.0.0.1", 0))
        await server.start(sock)
        try:
            async with asyncio.timeout(TEST_SECONDS_MAX):
                await scenario(sock.getsockname()[1], server)
        finally:
            await server.stop()
            assert server.connections == 0

    asyncio.run(run())


async def exchange(port: int, data: bytes) -> str:
    """Send bytes; return everything until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    received = await reader.read()
    writer.close()
    return received.decode()


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{line} HTTP/1.1", "Host: localhost", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


CLOSE = "Connection: close"
CHUNKED = "Transfer-Encoding: chunked"
LARGE = 2 * http_server.BODY_BYTES_MAX
CASES = [
    (request("GET /a/b%2Fc?x=1", CLOSE), OK, "GET a|b/c x=1 0"),
    (request("POST /a", CLOSE, "Content-Length: 3", body=b"abc"), OK, "POST a  3"),
    (
        request("POST /", CLOSE, CHUNKED, body=b"3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n"),
        OK,
        "POST   5",
    ),
    (request("HEAD /", CLOSE), OK, "\r\n\r\n"),
    (b"GET / HTTP/1.0\r\n\r\n", OK, "GET   0"),
    (b"nonsense\r\n\r\n", "HTTP/1.1 400", "invalid request line"),
    (request("PATCH /"), "HTTP/1.1 405", "not supported"),
    (request("GET /%ff"), "HTTP/1.1 400", "percent-encoded"),
    (request("GET /", "no colon"), "HTTP/1.1 400", "invalid header line"),
    (request("POST /", "Content-Length: x"), "HTTP/1.1 400", "invalid Content-Length"),
    (request("POST /", "Content-Length: 1", "Content-Length: 2"), "HTTP/1.1 400", "given twice"),
    (request("POST /", "Content-Length: 1", CHUNKED), "HTTP/1.1 400", "invalid body"),
    (request("POST /", f"Content-Length: {LARGE}", body=bytes(LARGE)), "HTTP/1.1 413", "too large"),
    (request("POST /", CHUNKED, body=b"fffffff\r\n"), "HTTP/1.1 413", "too large"),
    (request("POST /", CHUNKED, body=b"x\r\n"), "HTTP/1.1 400", "invalid chunk size"),
    (request("GET /", *[f"h{index}: x" for index in range(200)]), "HTTP/1.1 431", "too many headers"),
    (request("GET /" + "x" * 40_000), "HTTP/1.1 431", "too large"),
]


@pytest.mark.parametrize(("data", "start", "part"), CASES, ids=range(len(CASES)))
def test_a_request_gets_its_response_or_a_named_error(data, start, part):
    async def scenario(port, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        if start == "HTTP/1.1 413":
            await writer.drain()
            writer.write_eof()
        response = (await reader.read()).decode()
        writer.close()
        assert response.startswith(start)
        assert part in response

    serve(scenario)


def test_a_connection_serves_several_requests_also_when_sent_at_once():
    async def scenario(port, server):
        data = request("GET /a") + request("POST /b", "Content-Length: 2", body=b"xy") + request("GET /c", CLOSE)
        response = await exchange(port, data)
        assert response.count(OK) == 3
        assert [part in response for part in ("GET a  0", "POST b  2", "GET c  0")] == [True] * 3

    serve(scenario)


def test_a_client_may_wait_for_a_go_ahead_before_the_body():
    async def scenario(port, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("POST /", "Content-Length: 2", "Expect: 100-continue", CLOSE))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 Continue")
        writer.write(b"xy")
        assert b"POST   2" in await reader.read()
        writer.close()

    serve(scenario)


@pytest.mark.parametrize(
    ("data", "limit", "part"),
    [
        (b"GET / HT", "HEAD_SECONDS_MAX", "waiting for the headers"),
        (request("POST /", "Content-Length: 9", body=b"x"), "BODY_SECONDS_MAX", "waiting for the body"),
        (request("GET /"), "IDLE_SECONDS_MAX", OK),
        (b"", "IDLE_SECONDS_MAX", ""),
    ],
    ids=["head", "body", "idle after a request", "idle"],
)
def test_a_slow_client_is_disconnected(monkeypatch, data, limit, part):
    monkeypatch.setattr(http_server, limit, 0.1)

    async def scenario(port, server):
        assert part in await exchange(port, data)

    serve(scenario)


def test_a_client_that_does_not_read_is_disconnected(monkeypatch):
    monkeypatch.setattr(http_server, "WRITE_SECONDS_MAX", 0.1)

    async def large(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, bytes(64 * 1024 * 1024), "text/plain")

    async def scenario(port, server):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(request("GET /"))
        while not server.connections:
            await asyncio.sleep(0.01)
        while server.connections:
            await asyncio.sleep(0.01)
        writer.close()

    serve(scenario, large)


def test_connections_beyond_the_limit_are_refused_and_others_served(monkeypatch):
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 3)

    async def scenario(port, server):
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        while server.connections < 3:
            await asyncio.sleep(0.01)
        assert "503" in await exchange(port, b"")
        pairs[0][1].write(request("GET /", CLOSE))
        assert OK in (await pairs[0][0].read()).decode()
        for _, writer in pairs:
            writer.close()

    serve(scenario)


def test_bodies_of_all_connections_have_a_limit(monkeypatch):
    monkeypatch.setattr(http_server, "BODIES_BYTES_MAX", 1000)

    async def scenario(port, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("POST /", "Content-Length: 900", "Expect: 100-continue", CLOSE))
        await reader.readuntil(b"\r\n\r\n")
        assert "503" in await exchange(port, request("POST /", "Content-Length: 900"))
        writer.write(bytes(900))
        assert OK in (await reader.read()).decode()
        writer.close()
        assert OK in await exchange(port, request("POST /", "Content-Length: 900", CLOSE, body=bytes(900)))

    serve(scenario)
