"""What a server serves, as a value that passes from process to process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from lancekeep.config import ConnectionConfig
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.entrypoints.subscribers import ConfiguredSubscriber


@attrs.frozen
class Task:
    """What a server serves. Workers receive it from another process.

    Attributes:
        config: How to connect to the catalog.
        settings: The settings of the server.
        native: Whether to serve the directory namespace of pylance.
        maintenance: The file of the policy by which this process maintains tables; None if it does not.
        records: Whether this process records and delivers events, if the settings say so.
        subscribers: The subscribers of events.
        committers: The directory in which the workers agree which one commits the appends of a table; None without.
    """

    config: ConnectionConfig
    settings: ServerSettings
    native: bool = False
    maintenance: Path | None = None
    records: bool = True
    subscribers: tuple[ConfiguredSubscriber, ...] = ()
    committers: Path | None = None

    def of_worker(self, number: int) -> Task:
        """Return the task of one worker.

        The first one maintains tables, and records and delivers events.
        """
        if self.settings.workers == 1:
            return self
        maintenance = None if number else self.maintenance
        return attrs.evolve(self, settings=self.settings.share(), maintenance=maintenance, records=not number)


@attrs.frozen
class Served:
    """What a server serves, for its announcement.

    Attributes:
        root: The root of the catalog, without secrets.
        has_page: Whether it has a page for browsers.
    """

    root: str
    has_page: bool


def require_sharable(config: ConnectionConfig) -> None:
    """Refuse to serve a catalog that only one process can see.

    Raises:
        InvalidInput: The catalog or its commit store is in memory.
    """
    for place in (config.root, config.commit_store):
        if place is not None and place.startswith("memory:"):
            raise InvalidInput(f"{place} is in the memory of one process; serve it with --workers 1")


@contextmanager
def shared_committers() -> Iterator[Path | None]:
    """Make the directory in which workers agree on committers.

    Yields:
        The directory, which is removed at the end; None if the system does not permit `UnixCommitters`.
    """
    if sys.platform != "linux":
        yield None
        return
    with TemporaryDirectory(prefix="lancekeep-committers-", ignore_cleanup_errors=True) as directory:  # of mode 0700
        yield Path(directory)
