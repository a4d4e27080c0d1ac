"""Explain why the engine cannot open or change a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.tables import Tables
from lancekeep.application.rows.versions import Versions
from lancekeep.domain.catalog import Lookup
from lancekeep.domain.directory_contents import is_left_by_writes
from lancekeep.domain.errors import (
    AlreadyExists,
    CommitRefused,
    ConcurrentModification,
    Damaged,
    InvalidInput,
    LancekeepError,
    NotFound,
    ObjectNotFound,
    StoreUnavailable,
    TableNotFound,
    VersionNotFound,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.table import Table
from lancekeep.format.file_references import names_in


class Diagnosis:
    """Finds the cause of an error of the engine.

    Args:
        ledger: The entries and commits.
        places: The places of tables.
        versions: The versions of tables.
        tables: The entries of tables.
    """

    def __init__(self, ledger: Ledger, places: Places, versions: Versions, tables: Tables) -> None:
        self._ledger = ledger
        self._places = places
        self._versions = versions
        self._tables = tables

    @contextmanager
    def of(self, object_id: ObjectId) -> Iterator[None]:
        """Raise the cause with its remedy instead.

        The cause may be a direct commit that the table holds, a lost version, or an unfinished clone.
        """
        try:
            yield
        except (CommitRefused, ConcurrentModification):
            with suppress(NotFound, StoreUnavailable):
                self._ledger.commits.holding.require_none(self._places.dataset_root(self._tables.find(object_id)))
            raise
        except (NotFound, AlreadyExists, InvalidInput, Damaged, OSError) as error:
            fault = refusal = remains = None
            with suppress(LancekeepError):  # the original error is raised
                table = self._tables.find(object_id)
                fault = self._head_fault(table)
                refusal = self._versions.unfinished_clones.refusal(table)
                remains = self.remains(table) if isinstance(error, TableNotFound | VersionNotFound) else None
            if refusal is not None:
                raise refusal from error
            if remains is not None:
                raise (TableNotFound if isinstance(error, TableNotFound) else VersionNotFound)(remains) from error
            if fault is None:
                raise
            raise Damaged(
                f"the table {object_id}: {fault}. Put the manifest back from a backup. Without one, `lancekeep repair "
                f"{self._places.root_uri} --table {object_id} --accept-loss` shows which version it can go back to"
            ) from error

    def remains(self, table: Table) -> str | None:
        """Explain that files of writes, without a version, bring a name back.

        None for other tables.
        """
        entry = self._ledger.view(Lookup(table.id.key)).find(table.id.key)
        if entry is None or not entry.listed:
            return None
        root = self._places.dataset_root(table)
        if not is_left_by_writes(self._places.names(root)) or self._ledger.commits.latest(root) is not None:
            return None
        return (
            f"the table {table.id} has no version, and was not declared: a write that was refused after a drop or "
            f"rename left files in {table.location!r}, or a writer is creating the table. Free the name with "
            "`lancekeep drop`, or write the first version with mode='overwrite'. "
            f"`lancekeep repair {self._places.root_uri}` removes the files after its grace time"
        )

    def _head_fault(self, table: Table) -> str | None:
        """Describe the fault of the latest manifest; None if it is readable or absent."""
        latest = self._ledger.commits.latest(self._places.dataset_root(table))
        if latest is None:
            return None
        try:
            names_in(self._places.objects.get(latest.path), latest.path)
        except ObjectNotFound:
            if self._ledger.commits.final_object(self._places.dataset_root(table), latest.version) is not None:
                return None  # renamed without the commit store
            return f"its latest version {latest.version} is lost, because nothing lies at {latest.path!r}"
        except Damaged as error:
            return f"its latest version {latest.version} cannot be read: {error}"
        return None
