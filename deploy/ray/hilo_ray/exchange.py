"""One request and its response, passed through between a client of Ray Serve and the server.

Bytes are passed on as they arrive, so events of a stream are not held back. When the client leaves, Ray Serve cancels
the replica's task. That closes the connection to the server, which cancels the generation.
"""

import json
import logging
from collections.abc import Iterable

import aiohttp
from multidict import CIMultiDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from yarl import URL

RawHeaders = list[tuple[bytes, bytes]]

# RFC 9110, section 7.6.1, and `expect`, which Ray Serve has already replied to.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# aiohttp sets the length of the body that it sends.
_NOT_SENT = _HOP_BY_HOP | {b"content-length"}
# Ray Serve's proxy adds these headers to every response. It sends the id to the server too, which returns the same one.
_NOT_RETURNED = _HOP_BY_HOP | {b"date", b"x-request-id"}

logger = logging.getLogger("ray.serve")


def open_session(socket_path: str) -> aiohttp.ClientSession:
    """Returns a session whose connections all go to the Unix socket, and that adds nothing to requests."""
    return aiohttp.ClientSession(
        # Ray Serve bounds the number of requests.
        connector=aiohttp.UnixConnector(socket_path, limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        max_line_size=65536,
        max_field_size=65536,
    )


class Exchange(Response):
    """A response that Ray Serve sends by calling it, as it does with any response of Starlette's."""

    def __init__(self, session: aiohttp.ClientSession, request: Request, body: bytes, replica: str) -> None:
        """Prepares the request. Its response gets a header `x-hilo-replica` with the name of the replica."""
        super().__init__()
        self._session = session
        self._request = request
        self._body = body
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the request to the server, and its response to `send`."""
        has_head = False
        try:
            async with self._session.request(
                self._request.method,
                URL("http://localhost" + _target(self._request.scope), encoded=True),
                headers=_sent_headers(self._request.headers.raw),
                data=self._body or None,
                allow_redirects=False,
            ) as response:
                headers = _passed_on(response.raw_headers, _NOT_RETURNED)
                headers.append((b"x-hilo-replica", self._replica.encode()))
                await send({"type": "http.response.start", "status": response.status, "headers": headers})
                has_head = True
                async for chunk in response.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except aiohttp.ClientError as error:
            logger.warning("%s %s: the server is gone: %r", self._request.method, self._request.url.path, error)
            # A response without its end tells Ray Serve to close the client's connection, as the server has done.
            if not has_head:
                await _unavailable(self._replica)(scope, receive, send)
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _target(scope: Scope) -> str:
    """Returns path and query without the prefix of the application's route."""
    path = bytes(scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    path = "/" + path.removeprefix(scope.get("root_path", "").rstrip("/")).lstrip("/")
    query = bytes(scope["query_string"]).decode("latin-1")
    return f"{path}?{query}" if query else path


def _sent_headers(headers: Iterable[tuple[bytes, bytes]]) -> CIMultiDict[str]:
    return CIMultiDict(
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in _passed_on(headers, _NOT_SENT)
    )


def _passed_on(headers: Iterable[tuple[bytes, bytes]], excluded: frozenset[bytes]) -> RawHeaders:
    """Returns the headers without the excluded ones and without those that `connection` names."""
    lower = [(name.lower(), value) for name, value in headers]
    named = {option.strip().lower() for name, value in lower if name == b"connection" for option in value.split(b",")}
    return [(name, value) for name, value in lower if name not in excluded and name not in named]


def _unavailable(replica: str) -> Response:
    """The response when the server ends before it has replied. Clients may send the request again."""
    body = {"error": "The server of this replica has ended. Send the request again.", "error_type": "unavailable"}
    headers = {"retry-after": "1", "x-hilo-replica": replica}
    return Response(json.dumps(body), 503, headers, "application/json")
