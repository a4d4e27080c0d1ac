"""The bodies of requests that have arrived.

A body is received whole before its operation takes a thread, so clients that send slowly hold no thread. Large bodies
are in temporary files. The bytes of all bodies are bounded, and so are the bytes of each caller.

The frames of an error often form a cycle with it, and hold the request. The garbage collector counts objects, and not
their sizes, so it would come hundreds of megabytes later. It runs after some bytes of failed requests.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, Final, cast

from lance_namespace.errors import ErrorCode

from lancekeep.entrypoints.rest.channel import RequestBody
from lancekeep.entrypoints.rest.errors import HttpError

IN_MEMORY: Final = 1 << 18
"""The size in bytes up to which a body stays in memory."""
_WRITTEN_AT_ONCE: Final = 1 << 20
_FAILED: Final = 32 << 20
"""The bytes of failed requests after which the garbage collector runs."""


class Bodies:
    """Receives bodies and holds them until their operations have ended.

    Args:
        most: The bytes of all bodies. A known caller may use half of them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()
        self._failed = 0

    @asynccontextmanager
    async def received(self, body: RequestBody, caller: str) -> AsyncIterator[BinaryIO]:
        """Receive a body, and yield it as a file at its start.

        Args:
            body: The body, of which nothing was read.
            caller: Who sends it; empty if the server does not know.

        Raises:
            Disconnected: The client left before the end of the body.
            HttpError: The server holds too many bytes (503).
        """
        size = 0
        with SpooledTemporaryFile(max_size=IN_MEMORY) as file:
            try:
                waiting: list[bytes] = []
                written = 0
                async for part in body.parts():
                    self._take(caller, len(part))
                    size += len(part)
                    waiting.append(part)
                    if size > IN_MEMORY and size - written >= _WRITTEN_AT_ONCE:
                        await asyncio.to_thread(file.writelines, waiting)
                        waiting, written = [], size
                if size > IN_MEMORY:
                    await asyncio.to_thread(file.writelines, waiting)
                else:
                    file.writelines(waiting)
                file.seek(0)
                yield cast(BinaryIO, file)
            except BaseException:
                self._count_failed(size)
                raise
            finally:
                self._held[caller] -= size
                if not self._held[caller]:
                    del self._held[caller]

    def _count_failed(self, size: int) -> None:
        self._failed += size
        if self._failed >= _FAILED:
            self._failed = 0
            gc.collect()

    def _take(self, caller: str, size: int) -> None:
        held = self._held.total() + size
        of_caller = self._held[caller] + size if caller else 0
        if held > self._most or of_caller > self._most // 2:
            whose = "your requests" if of_caller > self._most // 2 else "all requests"
            raise HttpError(
                503,
                f"The server holds {min(held, self._most)} bytes of the bodies of {whose}; try again later.",
                ErrorCode.SERVICE_UNAVAILABLE,
                {"retry-after": "1"},
            )
        self._held[caller] += size
