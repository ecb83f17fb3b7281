"""The server's life: a socket, an address with a token, until Ctrl-C."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from typing import Any

from crispseg.errors import UserError
from crispseg.view.guard import Guard, is_loopback


class Server:
    """Bound to its port when made, so that its address is known before it answers."""

    def __init__(self, app: Any, port: int = 0, host: str = "127.0.0.1") -> None:
        import uvicorn

        self.host = host
        self.token = secrets.token_urlsafe(24)
        self._socket = _listen(host, port)
        config = uvicorn.Config(
            Guard(app, self.token, host),
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
            lifespan="off",
        )
        self._server = uvicorn.Server(config)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        name = self.host if is_loopback(self.host) else socket.getfqdn() if _is_any(self.host) else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/{self.token}/"

    def run(self) -> None:
        """Until somebody stops it."""
        try:
            self._server.run(sockets=[self._socket])
        except KeyboardInterrupt:  # the way to end it
            pass
        finally:
            self._socket.close()

    def start(self) -> Callable[[], None]:
        """In the background; gives what stops it."""
        thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        thread.start()

        def stop() -> None:
            self._server.should_exit = True
            thread.join(10)
            self._socket.close()

        return stop


def show(server: Server, browser: bool) -> None:
    """Open it in the browser, and serve."""
    if browser:
        # a moment later, when the server answers
        threading.Timer(0.5, webbrowser.open, (server.address,)).start()
    server.run()


def _is_any(host: str) -> bool:
    return host in ("0.0.0.0", "::")


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise UserError(f"a port is a number from 0 (any free one) to 65535, not {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port, or 0 for any free one"
        ) from error
