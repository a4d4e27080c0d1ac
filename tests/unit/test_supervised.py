"""What a worker sends to its supervisor."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from lancekeep.entrypoints.rest import supervised
from lancekeep.entrypoints.rest.supervised import Supervised


def test_worker_is_alive_while_its_event_loop_runs_and_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "CHECK", 0.05)
    ours, other = socket.socketpair()

    def heard() -> int:
        return ours.recv(1 << 16).count(b"alive")

    async def serve() -> tuple[int, int]:
        Supervised(other).serve("served")
        await asyncio.sleep(0.5)
        running = heard()
        time.sleep(1)  # the event loop does not run
        other.send(b"-")  # so that there is something to read
        return running, heard()

    with ours, other:
        running, blocked = asyncio.run(serve())
        time.sleep(0.5)
        assert (running > 1, blocked < 2, heard() > 1) == (True, True, True)
