"""Notifications of a PostgreSQL server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg

from lancekeep.domain.errors import LancekeepError
from lancekeep.postgres.database import Connection, Database

PAUSE = 1.0
"""Seconds between attempts to connect again."""
# A notification takes a lock of the whole server until its transaction is on disk, so a change makes none that nothing
# waits for. A listener that locks the topic later reads the change, because the change keeps its lock until it is
# visible.
WATCHED = "NOT pg_try_advisory_xact_lock(hashtextextended(%(topic)s, 0))"
"""A condition of a statement that notifies: a session may listen for the topic."""
_WATCH = "SELECT pg_advisory_lock_shared(hashtextextended(%s, 0))"


@contextmanager
def listening(database: Database, channel: str, topic: str) -> Iterator[Callable[[float], None]]:
    """Provide a function that waits for a notification, at most a number of seconds.

    A server that cannot notify makes the function wait for the whole time: a standby, or a pooler that gives each
    transaction another session. The function returns at once after it has connected again.

    Args:
        database: The database.
        channel: The channel of the notifications.
        topic: Their payload; others are ignored.
    """
    connection = _listener(database, channel, topic)

    def wait(seconds: float) -> None:
        nonlocal connection
        if connection is None or connection.closed:
            pause = min(seconds, PAUSE)
            time.sleep(pause)
            connection = _listener(database, channel, topic)
            if connection is None and seconds > pause:
                time.sleep(seconds - pause)
            return
        try:
            for note in connection.notifies(timeout=seconds):
                if note.payload == topic:
                    return
        except TimeoutError:  # no notification
            return
        except psycopg.Error:
            connection.close()

    try:
        yield wait
    finally:
        if connection is not None:
            connection.close()


def _listener(database: Database, channel: str, topic: str) -> Connection | None:
    """Return a connection that listens; None if the server cannot notify."""
    if not database.has_sessions:
        return None
    with suppress(psycopg.Error, LancekeepError):
        connection = database.connect()
        try:
            connection.execute(f'LISTEN "{channel}"'.encode())
            connection.execute(_WATCH, (topic,))
        except (psycopg.Error, TimeoutError):  # or a transaction that changes the catalog has not ended
            connection.close()
        else:
            return connection
    return None
