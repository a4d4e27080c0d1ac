"""The application of `lancekeep serve`: one catalog, or several of them.

Each of several catalogs opens, fails and is tried again for itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from starlette.applications import Starlette
from structlog.contextvars import bind_contextvars

from lancekeep.adapters.lance.panics import is_panic
from lancekeep.domain.errors import LancekeepError
from lancekeep.entrypoints.page.catalogs import SEGMENTS_OF_CATALOGS, ShownCatalog
from lancekeep.entrypoints.page.serving import page_of_catalogs
from lancekeep.entrypoints.rest.audit import AuditLog
from lancekeep.entrypoints.rest.catalogs import app_of
from lancekeep.entrypoints.rest.logs import log_of
from lancekeep.entrypoints.rest.security.setup import Authenticators, authenticators_of
from lancekeep.entrypoints.rest.task import Served, SeveralTasks, Task, prefix_of
from lancekeep.entrypoints.serving import application
from lancekeep.local_files import not_reported

Opened = tuple[Starlette, Served, Callable[[float], bool]]
"""An application, what it serves, and what ends its work in the background."""

PATIENCE: Final = 5.0
"""How many seconds the start of a server waits for its catalogs; those that take longer open while it serves."""

LONGEST_PAUSE: Final = 60.0
"""The maximum time in seconds before a catalog that could not be opened is opened again."""


def served_by(task: Task | SeveralTasks) -> AbstractContextManager[Opened]:
    """Open what a server serves, as `application` does for one catalog."""
    return several(task) if isinstance(task, SeveralTasks) else application(task)


class Keeper:
    """Opens one of several catalogs in a thread, and closes it.

    A catalog that cannot be opened is tried again after a pause.

    Args:
        name: The name of the catalog.
        task: What to open.
        authenticators: What verifies credentials.
        log: The log.

    Attributes:
        opened: The open catalog; None before.
        problem: Why it is not open.
    """

    def __init__(self, name: str, task: Task, authenticators: Authenticators, log: Any) -> None:
        self.opened: Opened | None = None
        self.problem = "it is still being opened"
        self._name = name
        self._task = task
        self._authenticators = authenticators
        self._log = log.bind(catalog=name)
        self._tried = Event()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=f"catalog {name}", daemon=True)

    @property
    def app(self) -> Starlette | None:
        """The application of the catalog; None while it is not open."""
        opened = self.opened
        return None if opened is None else opened[0]

    @property
    def state(self) -> str:
        """The root of the catalog, or why it is not open."""
        opened = self.opened
        return f"not available: {self.problem}" if opened is None else opened[1].root

    def start(self) -> None:
        """Open the catalog in the thread."""
        self._thread.start()

    def await_first(self, seconds: float) -> None:
        """Wait for the first attempt to open the catalog, or for some seconds."""
        self._tried.wait(seconds)

    def end(self, seconds: float) -> bool:
        """End the work in the background; return whether it ended in some seconds."""
        opened = self.opened
        if opened is None:  # the end of the process ends an attempt to open it
            self._stopping.set()
            return True
        return opened[2](seconds)

    def close(self) -> None:
        """Close the catalog.

        A catalog that is still being opened closes itself, unless the process ends before.
        """
        self._stopping.set()
        if self.opened is not None:
            self._thread.join()

    def _run(self) -> None:
        bind_contextvars(catalog=self._name)  # for the lines of the library in this thread and its threads
        pause = 1.0
        while not self._stopping.is_set():
            try:
                with application(self._task, self._name, self._authenticators) as opened:
                    self.opened = opened
                    if self._tried.is_set():
                        self._log.info("catalog opened", root=opened[1].root)
                    self._tried.set()
                    self._stopping.wait()
                return
            except BaseException as error:  # a panic of native code is no Exception
                if not isinstance(error, Exception) and not is_panic(error):
                    raise
                if self.opened is not None:
                    self._log.error("catalog closed with an error", exc_info=error)
                    return
                self._failed(error)
            self._tried.set()
            self._stopping.wait(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, LancekeepError):
            self.problem = str(error)
            self._log.error("catalog does not open, and is tried again", error=self.problem)
        else:
            self.problem = f"{type(error).__name__}; the log has the cause"
            self._log.error("catalog does not open, and is tried again", exc_info=error)


@contextmanager
def several(tasks: SeveralTasks) -> Iterator[Opened]:
    """Open several catalogs below one address.

    A catalog that cannot be opened does not stop the others: its requests are refused until it can.

    Yields:
        As `application`.

    Raises:
        InvalidInput: A setting that the catalogs share is not valid.
    """
    settings = tasks.settings
    audit = AuditLog(Path(settings.audit)) if settings.audit else None
    reloaded = not_reported if audit is None else audit.reloaded
    authenticators = authenticators_of(settings, reloaded, [each.settings.policy for each in tasks.tasks.values()])
    log = log_of(settings)
    keepers = {name: Keeper(name, each, authenticators, log) for name, each in tasks.tasks.items()}
    page = page_of_catalogs(
        lambda: [ShownCatalog(name, f"{prefix_of(name)}/", each.app is not None) for name, each in keepers.items()],
        settings,
        authenticators,
    )
    app = app_of(keepers, settings, authenticators, dict.fromkeys(SEGMENTS_OF_CATALOGS, page), audit)

    def end_background(seconds: float) -> bool:
        left = _left_of(seconds)
        ended = [each.end(left()) for each in keepers.values()]  # each of them, also after one that has not
        return all(ended)

    try:
        for each in keepers.values():
            each.start()
        left = _left_of(PATIENCE)
        for each in keepers.values():
            each.await_first(left())
        states = {name: each.state for name, each in keepers.items()}
        example = next((name for name, each in keepers.items() if each.app is not None), next(iter(keepers)))
        yield app, Served(f"{len(keepers)} catalogs", True, states, example), end_background
    finally:
        for each in keepers.values():
            each.close()


def _left_of(seconds: float) -> Callable[[], float]:
    end = time.monotonic() + seconds
    return lambda: max(0.0, end - time.monotonic())
