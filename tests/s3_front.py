"""An S3 proxy before moto that answers some requests itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import attrs

DROPPED = frozenset(("host", "expect", "content-length", "transfer-encoding", "connection", "date", "server"))
"""Headers of one connection."""


@attrs.frozen
class Asked:
    """A request; ``forward`` sends it to moto, optionally with other headers or another method."""

    method: str
    path: str
    headers: Mapping[str, str]
    forward: Callable[..., Answer]


@attrs.frozen
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def without(self, text: str) -> Answer:
        """Return the answer without a header and an XML element of this name."""
        headers = {name: value for name, value in self.headers.items() if name.lower() != text.lower()}
        start, tag, rest = self.body.partition(f"<{text}>".encode())
        return Answer(self.status, headers, start + rest.partition(f"</{text}>".encode())[2] if tag else self.body)


@contextmanager
def s3_front(endpoint: str, answer: Callable[[Asked], Answer]) -> Iterator[str]:
    """Yield the URL of a server before ``endpoint``."""

    class Front(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = {name: value for name, value in self.headers.items() if name.lower() not in DROPPED}

            def forward(headers: Mapping[str, str] = found, method: str = self.command) -> Answer:
                connection = HTTPConnection(endpoint.removeprefix("http://"))
                try:
                    connection.request(method, self.path, body if method in ("PUT", "POST") else None, dict(headers))
                    reply = connection.getresponse()
                    return Answer(reply.status, dict(reply.headers), reply.read())
                finally:
                    connection.close()

            told = answer(Asked(self.command, self.path, found, forward))
            self.send_response(told.status)
            for name, value in told.headers.items():
                if name.lower() not in DROPPED:
                    self.send_header(name, value)
            length = told.headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(told.body))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(told.body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
        setattr(Front, f"do_{method}", Front._handle)
    with ThreadingHTTPServer(("127.0.0.1", 0), Front) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def checking_first(asked: Asked, meeting: threading.Barrier) -> Answer:
    """Check If-None-Match, then write, without atomicity: overlapping requests both succeed."""
    if asked.method != "PUT" or "If-None-Match" not in asked.headers:
        return asked.forward()
    if asked.forward(method="HEAD").status == 200:
        return Answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
    try:
        meeting.wait(0.2)
    except threading.BrokenBarrierError:  # no other request overlaps
        meeting.reset()
    return asked.forward({name: value for name, value in asked.headers.items() if name != "If-None-Match"})
