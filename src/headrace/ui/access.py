"""Who may come in.

    Host     a view on the loopback answers to names of the loopback only: no other site can pretend to be it
    Origin   pages of other sites cannot talk to it through the browser of somebody who may
    frames   pages of other sites cannot show it inside theirs, and have its buttons pressed by mistake
    token    where one is set: in a cookie, in `Authorization: Bearer …`, or once as ?token=… in the address

A view that others can reach always has a token.
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
_NOT_IN_FRAMES = [(b"x-frame-options", b"DENY"), (b"content-security-policy", b"frame-ancestors 'none'")]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    return host in LOOPBACK_HOSTS or host.startswith("127.")


class Access:
    """Lets requests through to the view, or not."""

    def __init__(self, app: ASGIApp, *, token: str | None, only_loopback: bool, port: int) -> None:
        self._app = app
        self._token = token
        self._only_loopback = only_loopback
        self._cookie = f"headrace-{port}"  # cookies do not know of ports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unframed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_NOT_IN_FRAMES]
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
            return PlainTextResponse(f"This view is for this machine only; it does not answer to {host!r}.\n", 421)
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return PlainTextResponse("Pages of other sites may not use this view.\n", 403)
        return None if self._token is None else self._checked(scope, headers)

    def _checked(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        given = query.pop("token", None)
        if given is not None and self._fits(given) and scope["type"] == "http" and scope["method"] == "GET":
            answer = RedirectResponse(scope["path"] + (f"?{urlencode(query)}" if query else ""), 303)
            answer.set_cookie(self._cookie, given, max_age=COOKIE_SECONDS, httponly=True, samesite="lax")
            return answer
        bearer = headers.get("authorization", "")
        if self._fits(_cookie(headers.get("cookie", ""), self._cookie)) or self._fits(bearer.removeprefix("Bearer ")):
            return None
        return HTMLResponse(_ASK.replace("NOTE", "" if given is None else "<p>That is not the token.</p>"), 401)

    def _fits(self, text: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(text.encode(), self._token.encode())


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


_ASK = """<!doctype html><html lang="en"><head><title>headrace</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"></head>
<body style="font-family: sans-serif; max-width: 34rem; margin: 4rem auto; padding: 0 1rem">
<h1>headrace</h1>NOTE
<p>This view wants a token. It was printed where the view was started; opening the address printed there is enough.</p>
<form method="get"><label>Token <input name="token" type="password" autofocus></label> <button>Open</button></form>
</body></html>
"""
