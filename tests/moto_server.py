"""moto's AWS, one request at a time: ``python moto_server.py HOST PORT``; prints the port once it listens.

moto checks a condition (If-None-Match, attribute_not_exists) and writes in two steps, and its own server runs requests
in threads: two racing writers can both be told that they won. AWS promises that they are not, so requests queue here.
Run as a script, in this environment or in a container that has moto, so it imports nothing of ours.
"""

import logging
import sys
from collections.abc import Iterable
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from botocore.utils import parse_to_aware_datetime
from moto.core import serialize
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


class Handler(MotoRequestHandler):
    disable_nagle_algorithm = True  # headers and body are sent apart


def main() -> None:
    host, port = sys.argv[1], int(sys.argv[2])
    aws = DomainDispatcherApplication(create_backend_app)
    aws.get_backend_for_host = cache(aws.get_backend_for_host)  # type: ignore[method-assign] # reads a folder 130 times
    vars(serialize)["parse_to_aware_datetime"] = cache(parse_to_aware_datetime)  # dominates the listing of objects
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
