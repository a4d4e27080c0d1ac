"""moto's AWS, one request at a time: ``python moto_server.py HOST PORT``; prints the port once it listens.

moto checks a condition (If-None-Match, attribute_not_exists) and writes in two steps, and its own server runs requests
in threads: two racing writers can both be told that they won. AWS promises that they are not, so requests queue here.
Run as a script, in this environment or in a container that has moto, so it imports nothing of ours.
"""

import copy
import io
import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from botocore.utils import parse_to_aware_datetime
from flask import Flask
from moto.core import responses, serialize
from moto.core.utils import method_names_from_class
from moto.dynamodb.models.table import Table
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from moto.backends import SERVICE_NAMES


class Handler(MotoRequestHandler):
    """Keeps connections open. werkzeug closes each after one request, which doubles the cost of the request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 30
    """Seconds after which an idle connection is closed, since clients rarely close theirs."""

    def run_wsgi(self) -> None:
        environ = self.make_environ()
        chunked = "wsgi.input_terminated" in environ
        size = -1 if chunked else int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(size))
        head = [f"Date: {self.date_time_string()}"]

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: object = None
        ) -> Callable[[bytes], object]:
            head[:0] = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
            return bytes  # the application returns its answer; it writes nothing

        content = b"".join(self.server.app(environ, start_response))
        if not any(line.lower().startswith("content-length:") for line in head):
            head.append(f"Content-Length: {len(content)}")
        self.wfile.write("\r\n".join([*head, "\r\n"]).encode("latin-1") + content)

    def log_error(self, *_: object) -> None:
        """Report no idle connections."""


def application(service: "SERVICE_NAMES") -> Flask:
    """Return moto's application for a service, without what costs time in each request."""
    app = create_backend_app(service)
    app.debug = False  # defines a class per request
    app.after_request_funcs.clear()  # headers for browsers
    return app


def share_items(table: Table, _: object) -> Table:
    """Copy a table for the rollback of a transaction. Puts replace items, so the copy shares them.

    moto copies the attributes of all items instead, so each transaction costs more than the one before.
    """
    copied = copy.copy(table)
    copied.items = defaultdict(dict, {key: dict(items) for key, items in table.items.items()})
    return copied


def main() -> None:
    host, port = sys.argv[1], int(sys.argv[2])
    aws = DomainDispatcherApplication(application)
    aws.get_backend_for_host = cache(aws.get_backend_for_host)  # type: ignore[method-assign] # reads a folder 130 times
    vars(serialize)["parse_to_aware_datetime"] = cache(parse_to_aware_datetime)  # dominates the listing of objects
    vars(responses)["method_names_from_class"] = cache(method_names_from_class)  # inspects a class per request
    Table.__deepcopy__ = share_items  # type: ignore[attr-defined]
    turn = Lock()

    def one_at_a_time(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        with turn:
            answer: Iterable[bytes] = aws(environ, start_response)
            return answer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line per request
    server = make_server(host, port, one_at_a_time, threaded=True, request_handler=Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
