"""Who may ask: only someone who has the token, from this machine's own name, and only to read.

A web page elsewhere can make the user's browser send requests here. It does not know the token; a name that is
pointed at this machine (DNS rebinding) is not one of ours; and no answer may be read, framed or embedded elsewhere.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Wraps the application; the token is the first part of every path, and the application does not see it."""

    def __init__(self, app: App, token: str, host: str = "127.0.0.1") -> None:
        self.app, self.token = app, token
        self.names = {"localhost", host.lower(), *_own_names(host)}
        self.anywhere = not is_loopback(host)

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        sealed = _sealed(send)
        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(sealed, *refusal)
            return
        rest = scope["path"][1 + len(self.token) :] or "/"
        await self.app({**scope, "path": rest, "raw_path": rest.encode()}, receive, sealed)

    def _refusal(self, scope: Message) -> tuple[int, str] | None:
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._ours(host):
            return 421, "This server answers to its own address only."
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "Another site may not ask."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "There is nothing to write here."
        given = scope["path"].split("/", 2)[1]
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return 403, "This page needs the whole address that crisp view printed, with its token."
        return None

    def _ours(self, host: str) -> bool:
        """Names of this machine, with any port: a tunnel has another one. Numbers cannot be pointed elsewhere."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self.anywhere


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _own_names(host: str) -> set[str]:
    return set() if is_loopback(host) else {socket.gethostname().lower(), socket.getfqdn().lower()}


def _sealed(send: Any) -> Any:
    """Puts the headers on every answer; an answer's own policy for its content stays."""

    async def sealed(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {key.lower() for key, _ in message["headers"]}
            extra = [(k.encode(), v.encode()) for k, v in _HEADERS.items() if k.encode() not in given]
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return sealed


async def _answer(send: Any, status: int, sentence: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{sentence}\n".encode()})
