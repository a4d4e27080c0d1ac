"""An object storage in memory behind HTTP, for fakes of clouds."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

import attrs

DATE = "Sat, 28 Nov 2026 00:00:00 GMT"


@attrs.frozen
class Asked:
    """A request; the path is decoded, and the names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def bucket(self) -> str:
        return self.path.strip("/").partition("/")[0]

    @property
    def key(self) -> str:
        return self.path.lstrip("/").partition("/")[2]


@attrs.frozen
class Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = attrs.field(factory=dict)


class Cloud(Protocol):
    def answer(self, asked: Asked) -> Answer: ...


@contextmanager
def serving(cloud: Cloud, certificate: tuple[str, str] | None = None) -> Iterator[str]:
    """Yield the URL of a cloud that answers one request at a time; with a certificate and its key, over TLS."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            query = dict(parse_qsl(url.query, keep_blank_values=True))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                answer = cloud.answer(Asked(self.command, unquote(url.path), query, headers, body))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if "Content-Length" not in answer.headers and answer.status != 204:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
        setattr(Handler, f"do_{method}", Handler._handle)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


@attrs.define
class Objects:
    """Objects of buckets by their names, each with a number that grows with every write."""

    held: dict[tuple[str, str], tuple[bytes, int]] = attrs.field(factory=dict)
    number: int = 0

    def put(self, asked: Asked, body: bytes) -> Mapping[str, str]:
        self.number += 1
        self.held[asked.bucket, asked.key] = (body, self.number)
        return self.headers(asked)

    def has(self, asked: Asked) -> bool:
        return (asked.bucket, asked.key) in self.held

    def headers(self, asked: Asked) -> Mapping[str, str]:
        return {"ETag": f'"{self.held[asked.bucket, asked.key][1]}"', "Last-Modified": DATE}

    def read(self, asked: Asked, more: Mapping[str, str]) -> Answer:
        """Answer a GET or a HEAD, of a range too."""
        if not self.has(asked):
            return Answer(404)
        body, headers = self.held[asked.bucket, asked.key][0], {**self.headers(asked), **more}
        if asked.method == "HEAD":
            return Answer(200, b"", {**headers, "Content-Length": str(len(body))})
        wanted = asked.headers.get("x-ms-range") or asked.headers.get("range")
        if wanted is None:
            return Answer(200, body, headers)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(body) - int(last))
        end = min(int(last) + 1, len(body)) if first and last else len(body)
        if start >= len(body):
            return Answer(416)
        return Answer(206, body[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(body)}"})

    def listed(self, bucket: str, prefix: str, delimiter: str) -> tuple[list[tuple[str, int, int]], list[str]]:
        """Return the name, size and number of each object below a prefix, and the common prefixes."""
        found, common = [], set[str]()
        for (held, key), (body, number) in sorted(self.held.items()):
            if held != bucket or not key.startswith(prefix):
                continue
            rest = key.removeprefix(prefix)
            if delimiter and delimiter in rest:
                common.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                found.append((key, len(body), number))
        return found, sorted(common)


def element(name: str, content: object) -> str:
    """Return an XML element with text."""
    return f"<{name}>{escape(str(content))}</{name}>"
