"""Access control of the live view, as ASGI middleware.

    Host     a view on a loopback address accepts loopback host names only (against DNS rebinding)
    Origin   requests from pages of other sites are refused (against cross-site requests)
    frames   pages of other sites cannot embed the view (against clickjacking)
    token    if set: in a cookie, in `Authorization: Bearer …`, or once as ?token=… in the URL

A view on any other address always has a token.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE_SECONDS = 30 * 24 * 3600
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_CLOSED_BY_POLICY = 1008
_NO_FRAMES = [(b"x-frame-options", b"DENY"), (b"content-security-policy", b"frame-ancestors 'none'")]


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    return host in LOOPBACK_HOSTS or host.startswith("127.")


class AccessControl:
    """Middleware that forwards permitted requests to the application and refuses others."""

    def __init__(self, app: ASGIApp, *, token: str | None, only_loopback: bool, port: int) -> None:
        self._app = app
        self._token = token
        self._only_loopback = only_loopback
        self._cookie = f"headrace-{port}"  # cookies are shared by all ports of a host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unframed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_NO_FRAMES]
            await send(message)

        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self._app(scope, receive, send_unframed)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _CLOSED_BY_POLICY})
        else:
            await refusal(scope, receive, send_unframed)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if self._only_loopback and urlsplit(f"//{host}").hostname not in LOOPBACK_HOSTS:
            return PlainTextResponse(f"Host {host!r} refused: this view accepts loopback host names only.\n", 421)
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return PlainTextResponse("Request from another site refused.\n", 403)
        return None if self._token is None else self._check_token(scope, headers)

    def _check_token(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        given = query.pop("token", None)
        if given is not None and self._is_valid(given) and scope["type"] == "http" and scope["method"] == "GET":
            response = RedirectResponse(scope["path"] + (f"?{urlencode(query)}" if query else ""), 303)
            response.set_cookie(self._cookie, given, max_age=COOKIE_SECONDS, httponly=True, samesite="lax")
            return response
        bearer = headers.get("authorization", "")
        if self._is_valid(_cookie(headers.get("cookie", ""), self._cookie)) or self._is_valid(
            bearer.removeprefix("Bearer ")
        ):
            return None
        return HTMLResponse(_LOGIN_PAGE.replace("NOTE", "" if given is None else "<p>Invalid token.</p>"), 401)

    def _is_valid(self, text: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(text.encode(), self._token.encode())


def _cookie(header: str, name: str) -> str:
    try:
        cookie = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return "" if cookie is None else cookie.value


_LOGIN_PAGE = """<!doctype html><html lang="en"><head><title>headrace</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"></head>
<body style="font-family: sans-serif; max-width: 34rem; margin: 4rem auto; padding: 0 1rem">
<h1>headrace</h1>NOTE
<p>This view requires a token. It was printed when the view was started; the URL printed there includes it.</p>
<form method="get"><label>Token <input name="token" type="password" autofocus></label> <button>Open</button></form>
</body></html>
"""
