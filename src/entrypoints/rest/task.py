"""What a server serves, as a value that passes from process to process."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import attrs

from lancekeep.config import ConnectionConfig, given, named_catalogs, require_own_roots
from lancekeep.domain.automatic_maintenance import AUTO, OFF
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.rest.settings import ServerSettings, require_callers
from lancekeep.entrypoints.subscribers import ConfiguredSubscriber, configured_subscribers

CATALOGS: Final = "/catalogs/"
"""The path before the name of one of several catalogs."""

_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def prefix_of(name: str) -> str:
    """Return the path of one of several catalogs, without a slash at its end."""
    return CATALOGS + name


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

    @classmethod
    def configured(
        cls,
        settings: ServerSettings,
        properties: Mapping[str, Any],
        catalog: str | None = None,
        *,
        native: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the task that properties and the configuration describe.

        Args:
            settings: The settings of the server for this catalog.
            properties: The explicit properties of the connection. ``maintenance`` replaces the policy of the settings.
            catalog: The name of the configured catalog, if it has one.
            native: Whether to serve the directory namespace of pylance.
            environment: The variables to read; by default the variables of the process.

        Raises:
            InvalidInput: A setting is not valid.
        """
        plan = Path(settings.maintenance_policy) if settings.maintenance_policy else None
        if "maintenance" in properties:
            plan = None
        elif plan is not None:
            properties = given(properties, maintenance=OFF)
        config = ConnectionConfig.resolve(properties, environment)
        if config.maintenance is None and config.impl != "rest":  # the server of the catalog maintains it
            config = attrs.evolve(config, maintenance=AUTO)
        return cls(config, settings, native, plan, subscribers=configured_subscribers(environment, catalog))

    @property
    def longest(self) -> int:
        """The most seconds that an operation may take."""
        return max(self.settings.long_seconds, self.settings.operation_seconds)

    def with_committers(self, directory: Path | None) -> Task:
        """Return the task with a directory for its committers."""
        return attrs.evolve(self, committers=directory)

    def of_worker(self, number: int) -> Task:
        """Return the task of one worker.

        The first one maintains tables, and records and delivers events.
        """
        if self.settings.workers == 1:
            return self
        maintenance = None if number else self.maintenance
        return attrs.evolve(self, settings=self.settings.share(), maintenance=maintenance, records=not number)


@attrs.frozen
class SeveralTasks:
    """The catalogs that a server serves below one address.

    Workers receive it from another process.

    Attributes:
        settings: The settings that the catalogs share.
        tasks: The task of each catalog, by its name.
    """

    settings: ServerSettings
    tasks: Mapping[str, Task]

    @classmethod
    def configured(
        cls,
        options: Mapping[str, Any],
        properties: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the tasks of all configured catalogs.

        Args:
            options: The explicit settings of the server.
            properties: The explicit properties of every connection.
            environment: The variables to read; by default the variables of the process.

        Raises:
            InvalidInput: No catalog is configured, a name cannot be in a URL, two catalogs have one root, a setting
                is not valid, or a subscriber of events has no catalog.
        """
        names = sorted(named_catalogs(environment))
        if not names:
            ConnectionConfig.resolve({}, environment).require_root()
        for name in names:
            if not _NAME.fullmatch(name):
                raise InvalidInput(
                    f"the catalog {name!r} cannot be served below {CATALOGS}NAME: give it a name of at most 63 ASCII "
                    "letters, digits, '_' and '-' that begins with a letter or digit"
                )
        if configured_subscribers(environment):
            raise InvalidInput(
                "webhooks and event_files at the top level of the configuration do not say which of several catalogs "
                "they subscribe to; write [[catalogs.NAME.webhooks]] and [[catalogs.NAME.event_files]]"
            )
        tasks: dict[str, Task] = {}
        for name in names:
            own = ServerSettings.resolve(options, environment, name)
            require_callers(own)
            named = given(properties, catalog=name)
            tasks[name] = Task.configured(own, named, name, environment=environment)
        require_own_roots({name: each.config for name, each in tasks.items()})
        return cls(ServerSettings.resolve(options, environment), tasks)

    @property
    def longest(self) -> int:
        """The most seconds that an operation may take."""
        return max(each.longest for each in self.tasks.values())

    def of_worker(self, number: int) -> SeveralTasks:
        """Return the tasks of one worker, see `Task.of_worker`."""
        if self.settings.workers == 1:
            return self
        tasks = {name: each.of_worker(number) for name, each in self.tasks.items()}
        return SeveralTasks(self.settings.share(), tasks)

    def with_committers(self, directory: Path | None) -> SeveralTasks:
        """Return the tasks with a directory for the committers of each catalog."""
        if directory is None:
            return self
        found: dict[str, Task] = {}
        for number, (name, each) in enumerate(self.tasks.items()):
            own = directory / str(number)  # the address of a socket is short
            own.mkdir(mode=0o700)
            found[name] = attrs.evolve(each, committers=own)
        return SeveralTasks(self.settings, found)


@attrs.frozen
class Served:
    """What a server serves, for its announcement.

    Attributes:
        root: The root of the catalog, without secrets; of several, their number.
        has_page: Whether it has a page for browsers.
        catalogs: The catalogs by name, if there are several: the root, or why the catalog is not available.
        example: The catalog that an example takes, if there are several: the first one that is open.
    """

    root: str
    has_page: bool
    catalogs: Mapping[str, str] = attrs.field(factory=dict)
    example: str = ""


def place_in_memory(config: ConnectionConfig) -> str | None:
    """Return the root or the commit store that is in the memory of one process."""
    places = (place for place in (config.root, config.commit_store) if place is not None)
    return next((place for place in places if place.startswith("memory:")), None)


def is_sharable(task: Task | SeveralTasks) -> bool:
    """Return whether a successor of the process can serve the same catalogs.

    Raises:
        InvalidInput: Several workers must share a catalog that only one process can see.
    """
    tasks = [task] if isinstance(task, Task) else task.tasks.values()
    place = next(filter(None, (place_in_memory(each.config) for each in tasks)), None)
    if place is not None and task.settings.workers > 1:
        raise InvalidInput(f"{place} is in the memory of one process; serve it with --workers 1")
    return place is None


@contextmanager
def shared_committers(workers: int) -> Iterator[Path | None]:
    """Make the directory in which workers agree on committers.

    Yields:
        The directory, which is removed at the end; None for one worker, or if the system does not permit
        `UnixCommitters`.
    """
    if workers == 1 or sys.platform != "linux":
        yield None
        return
    with TemporaryDirectory(prefix="lancekeep-committers-", ignore_cleanup_errors=True) as directory:  # of mode 0700
        yield Path(directory)
