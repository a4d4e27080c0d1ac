"""A subscriber of webhooks as a process of its own.

    python webhook_receiver.py PORT LOG ANSWERS

It appends what it takes to the file LOG as JSON lines, before it answers. The file ANSWERS has the statuses of the next
requests in one line; after them the status is 200. ``hang`` answers a byte at a time, ``lost`` takes the request and
answers 500, ``echo`` answers with the path in place of a status, and ``flood`` takes the request and sends a body
without an end.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock


class Receiver(BaseHTTPRequestHandler):
    log: Path
    answers: Path
    lock = Lock()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        with self.lock:
            status, *others = self.answers.read_text().split() or ["200"]
            self.answers.write_text(" ".join(others))
            if status in ("200", "lost", "flood"):
                headers = {name.lower(): value for name, value in self.headers.items()}
                line = json.dumps({"headers": headers, "path": self.path, "body": body.decode()})
                with self.log.open("a") as log:
                    log.write(line + "\n")
        if status == "hang":
            for byte in b"HTTP/1.0 200 OK":
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)
            time.sleep(60)
        if status == "echo":
            self.wfile.write(f"\x1b[2J {self.path}\r\n\r\n".encode())
            return
        if status == "flood":
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
            with suppress(OSError):
                while True:
                    self.wfile.write(bytes(1 << 16))
            return
        number, _, header = status.partition(":")
        self.send_response({"lost": 500}.get(number) or int(number))
        if header:
            name, _, value = header.partition("=")
            self.send_header(name, value)
        self.end_headers()

    do_GET = do_POST  # noqa: N815 - a client that follows a redirect may ask so

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class names it
        pass


def main() -> None:
    port, Receiver.log, Receiver.answers = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    server = ThreadingHTTPServer(("127.0.0.1", port), Receiver)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
