"""An HTTP server for a namespace that can withhold responses, for the native REST client.

Only POST with the fields in the body, in the path and in the query: what the client sends for the operations tried here
(``rest-openapi.yaml`` of the Lance namespace specification).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import lance_namespace as api
from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError


class RestFront(ThreadingHTTPServer):
    """losses: how many answers of an operation, by its name, are 503 although it has been carried out.

    repeats: how many requests come twice, as from a proxy that tries again, and get the second answer. asked: the
    operations so far.
    """

    def __init__(self, namespace: api.LanceNamespace) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.namespace = namespace
        self.losses: Counter[str] = Counter()
        self.repeats: Counter[str] = Counter()
        self.asked: list[str] = []

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, body: bytes) -> tuple[int, str]:
        """Return the HTTP status and the JSON of the operation of a path."""
        url = urlsplit(path)
        _, _, kind, object_id, *parts = url.path.split("/")
        operation = "_".join((parts[-1], kind, *parts[:-1]))
        operation += "s" if parts[-1] == "list" else ""
        self.asked.append(operation)
        query = {name: _value(text) for name, text in parse_qsl(url.query) if name != "delimiter"}
        fields = {**query, **json.loads(body or b"{}"), "id": unquote(object_id).split("$")}
        request = getattr(api, "".join(map(str.capitalize, operation.split("_"))) + "Request").from_dict(fields)
        act = getattr(self.namespace, operation)
        try:
            response = act(request)
            if self.repeats[operation]:
                self.repeats[operation] -= 1
                response = act(request)
            if self.losses[operation]:
                self.losses[operation] -= 1
                raise ServiceUnavailableError("no answer came in time")
        except LanceNamespaceError as error:
            status = 503 if isinstance(error, ServiceUnavailableError) else 400
            return status, json.dumps({"error": str(error), "code": int(error.code)})
        return 200, "{}" if response is None else response.to_json()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RestFront

    def do_POST(self) -> None:
        status, text = self.server.answer(self.path, self.rfile.read(int(self.headers["content-length"] or 0)))
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Suppress the log of requests."""


def _value(text: str) -> object:
    return json.loads(text) if text in ("true", "false") or text.isdecimal() else text


@contextmanager
def rest_front(namespace: api.LanceNamespace) -> Iterator[RestFront]:
    with RestFront(namespace) as front:
        thread = Thread(target=front.serve_forever, daemon=True)
        thread.start()
        try:
            yield front
        finally:
            front.shutdown()
            thread.join()
