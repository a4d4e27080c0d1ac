"""The namespaces through which pylance commits: one for each write or dataset."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import attrs

from lancekeep.adapters.lance.callbacks import refused_to_native_code
from lancekeep.adapters.lance.namespace_errors import is_namespace_error
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import (
    CommitRefused,
    ConcurrentModification,
    LancekeepError,
    NotFound,
    TableNotFound,
    VersionNotFound,
    VersionTaken,
    causes,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.ports.table_engine import StagedVersion


def moved_during_write(table: object) -> CommitRefused:
    """Return the error of a write whose table was dropped or renamed."""
    return CommitRefused(
        f"{table}: the table was dropped or renamed during the write. Nothing was committed; write again to the right "
        "table"
    )


def moved_elsewhere(table: object) -> ConcurrentModification:
    """Return the error of a use of a table that a move has placed elsewhere."""
    return ConcurrentModification(
        f"{table}: the table was moved to another place; nothing was committed. Open it again"
    )


class Reads:
    """The reads of a namespace that pylance calls back.

    The engine turns every exception of a callback into an ``OSError`` with its text. The error of the last read that
    failed is kept as ``met``, and the error of the last commit as ``error``, with the token if its outcome is unknown.

    is_asked: whether the table commits through this namespace.
    is_tried: whether the engine has asked for a version, after it had written the manifest.
    """

    def __init__(self, namespace: Any) -> None:
        self.namespace = namespace
        self.is_asked = False
        self.is_tried = False
        self.error: LancekeepError | None = None
        self.met: LancekeepError | None = None
        self.committed: Committed | None = None
        self._has_read = False
        self._location: str | None = None

    def describe_table(self, request: Any) -> Any:
        described = self.namespace.describe_table(request)
        self._location = described.location
        return described

    def bind(self, namespace: Any) -> None:
        """Commit through the namespace of a writer that has read a version."""
        self.namespace = namespace
        self.follow_version()

    def follow_version(self) -> None:
        """Take a table without versions for another table: the writer has read one."""
        self._has_read = True

    def list_table_versions(self, request: Any) -> Any:
        return self._asked(self.namespace.list_table_versions, request)

    def describe_table_version(self, request: Any) -> Any:
        return self._asked(self.namespace.describe_table_version, request)

    def _asked(self, ask: Callable[[Any], Any], request: Any) -> Any:
        try:
            return ask(request)
        except Exception as error:
            self.met = error.__cause__ if isinstance(error.__cause__, LancekeepError) else None
            raise

    def is_elsewhere(self, table: ObjectId) -> bool:
        """Return whether the table has left the directory that the engine opened."""
        try:
            location = self.namespace.describe_table({"id": list(table.names)}).location
        except Exception as error:
            if not is_namespace_error(error):
                raise
            return False
        return self._location not in (None, location)

    def has_moved(self, table: ObjectId) -> bool:
        """Return whether the namespace no longer has the table.

        A writer that has read a version finds a table without versions there if files of a write, in a directory that
        the listing shows, bring the name back.
        """
        request = {"id": list(table.names)}
        try:
            self.namespace.describe_table(request)
            if self._has_read:
                self.namespace.describe_table_version(request)
        except Exception as error:
            if not is_namespace_error(error):
                raise
            return any(isinstance(cause, NotFound) for cause in causes(error.__cause__))
        return False


class Channel(Reads):
    """The namespace of one write, which records how its last commit ended.

    after: refuse every version except the next version after this number. With ``exactly``, ``after`` is set once the
        table is open.
    is_asked: whether the table commits through the channel. A storage-managed one does so, by the same condition of the
    storage, for an exact commit, where the catalog has to settle indexes, and with ``guards`` in a directory that may
    become another table's.
    ``admits`` decides whether a version that another writer has committed since may come between.
    ``fits`` decides whether the commit may follow a version.
    """

    def __init__(
        self,
        namespace: Any,
        *,
        after: int | None = None,
        exactly: bool = False,
        guards: bool = False,
        fits: Callable[[int], bool] | None = None,
    ) -> None:
        super().__init__(namespace)
        self.after = after
        self._guards = guards
        self.admits: Callable[[int], bool] | None = None
        self._is_over = False
        self._fits = fits
        self.is_asked = exactly or after is not None
        self._context = copy_context()  # native threads do not inherit the keyed request of the caller's thread

    def ask(self) -> None:
        """Let the table commit through the channel, also a storage-managed one."""
        self.is_asked = True

    def follow(self, version: int, admits: Callable[[int], bool] | None) -> None:
        """Refuse every version except the one after ``version``.

        Versions between that ``admits`` accepts do not count.
        """
        self.after, self.admits = version, admits

    def namespace_id(self) -> Any:
        return self.namespace.namespace_id()

    def declare_table(self, request: Any) -> Any:
        """Return the table, which the catalog has declared before the write."""
        return self.namespace.describe_table({"id": request.id})

    def describe_table(self, request: Any) -> Any:
        described = super().describe_table(request)
        guarded = self._guards and described.is_reused
        self.is_asked = self.is_asked or guarded or described.managed_versioning is True
        return attrs.evolve(described, managed_versioning=True) if self.is_asked else described

    def _follows(self, version: int) -> bool:
        """Return whether a commit as ``version`` may follow ``after``."""
        assert self.after is not None
        while self.after + 1 < version and self.admits is not None and self.admits(self.after + 1):
            self.after += 1
        return version == self.after + 1

    def _lost(self, request: Any, version: int) -> ConcurrentModification:
        return ConcurrentModification(
            f"{'.'.join(request['id'])}: another writer has committed version {version} since; "
            "nothing of this call was committed"
        )

    def _require_fitting(self, request: Any) -> None:
        """Raise if the commit must not follow the version before it. Nothing was committed then."""
        table, version = ".".join(request["id"]), request["version"]
        try:
            if self._fits is None or self._fits(version - 1):
                return
            self._is_over = True
            self.error = ConcurrentModification(
                f"{table}: another writer has dropped, replaced or retyped columns since the rows were written; "
                "nothing of this call was committed. Write the rows again."
            )
        except TableNotFound as error:
            self.error = refused_to_native_code(error)
        except VersionNotFound:  # no commit that has not read it may follow a later one
            self.error = ConcurrentModification(
                f"{table}: version {version - 1} was cleaned up before its columns were compared with the columns of "
                "the rows; nothing of this call was committed. Begin the write again."
            )
            if self.has_moved(ObjectId.of(request["id"])):
                self.error = moved_during_write(table)
        except LancekeepError as error:
            self.error = error
        raise self.error

    def describe_table_version(self, request: Any) -> Any:
        """Return a version, or end a write that cannot succeed.

        The engine would repeat it for up to 30 seconds.
        """
        if self._is_over:
            assert self.error is not None
            raise self.error
        return super().describe_table_version(request)

    def create_table_version(self, request: Any) -> Any:
        self.is_tried = True
        self.error = None
        if self.after is not None and not self._follows(request["version"]):
            self.error, self._is_over = self._lost(request, self.after + 1), True
            raise self.error
        self._require_fitting(request)
        try:
            response: Any = self._context.copy().run(self.namespace.create_table_version, request)
        except Exception as error:
            self.error = error.__cause__ if isinstance(error.__cause__, LancekeepError) else None
            if self.after is not None and self.admits is None and isinstance(self.error, VersionTaken):
                self.error, self._is_over = self._lost(request, request["version"]), True
            elif isinstance(self.error, CommitRefused) and self.is_elsewhere(ObjectId.of(request["id"])):
                self.error, self._is_over = moved_elsewhere(".".join(request["id"])), True
            raise
        version = response["version"]
        self.committed = Committed(version["version"], version["manifest_path"], version["manifest_size"])
        return response


class Handle(Reads):
    """The namespace of a dataset that outlives the call which opened it.

    commits: whether the caller keeps the dataset and may commit by it. Then a table whose directory may become another
        table's commits through the namespace, also a storage-managed one, as ``is_asked`` says once it is open.
    """

    def __init__(self, namespace: Any, *, commits: bool = False) -> None:
        super().__init__(namespace)
        self._commits = commits

    def describe_table(self, request: Any) -> Any:
        described = super().describe_table(request)
        self.is_asked = self._commits and described.is_reused and described.managed_versioning is not True
        return attrs.evolve(described, managed_versioning=True) if self.is_asked else described

    def __getattr__(self, name: str) -> Any:
        return getattr(self.namespace, name)


class StagingChannel(Channel):
    """A channel that keeps the staged manifest and commits nothing.

    The engine takes the manifest for committed. After a commit it writes its hint of the latest version, which readers
    treat as a hint, and runs the table's auto-cleanup, which never removes the version that the commit builds on.
    """

    staged: StagedVersion | None = None

    def create_table_version(self, request: Any) -> Any:
        self.is_tried = True
        self.error = None
        self._require_fitting(request)
        self.staged = StagedVersion(request["version"], request["manifest_path"], request["manifest_size"])
        return {"version": {key: request[key] for key in ("version", "manifest_path", "manifest_size")}}


class FirstChannel(StagingChannel):
    """A channel that stages the first version of a table without a catalog entry."""

    def list_table_versions(self, request: Any) -> Any:
        return {"versions": []}
