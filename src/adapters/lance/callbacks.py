"""The namespace that pylance calls back: locations of tables, and their versions.

Native threads call several of these operations in every commit. Their requests are dicts of typed values, so they are
neither validated nor converted to models, and the answers are dicts.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import attrs

from lancekeep.adapters.lance.namespace_errors import namespace_error, translating
from lancekeep.application.rows.versions import Versions, raise_unless_committed
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import (
    InvalidInput,
    LancekeepError,
    LsmWarning,
    Refused,
    TableNotFound,
    VersionNotFound,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.lineage import Base
from lancekeep.domain.mem_wal import LSM
from lancekeep.domain.naming import DETACHED, ManifestName
from lancekeep.domain.table import Table, is_reusable
from lancekeep.domain.version_row import VersionRow

Request = Mapping[str, Any]
Answer = dict[str, Any]
Callback = Callable[[Any, Request], Answer]

_MOST = 2**31 - 1
"""The limit that larger limits are reduced to: no listing is as long."""


def is_native(request: object) -> bool:
    """Return whether native code made a request.

    Its requests are of a subclass of dict with ``model_dump``.
    """
    return isinstance(request, dict) and hasattr(request, "model_dump")


def callback(method: Callback) -> Any:
    """Raise Lancekeep errors as namespace errors; a missing table is `Refused`."""

    @functools.wraps(method)
    def called(self: Any, request: Request) -> Answer:
        try:
            return method(self, request)
        except TableNotFound as error:
            refused = refused_to_native_code(error)
            raise namespace_error(refused) from refused
        except LancekeepError as error:
            show_refusal(error)
            raise namespace_error(error) from error

    return called


def show_refusal(error: LancekeepError) -> None:
    """Issue an `LsmWarning` for a refusal of LSM writes: native code hides its text.

    The error of a server has no class of its own, but its text names the property.
    """
    if isinstance(error, Refused) and LSM in str(error):
        warnings.warn(str(error), LsmWarning, stacklevel=3)


def refused_to_native_code(error: TableNotFound) -> Refused:
    """Return the error of a missing table for native code.

    Native code takes TableNotFoundError as an invitation to scan the directory of a dropped table.
    """
    refused = Refused(f"the table was dropped or renamed since it was opened; open it again: {error}")
    refused.__cause__ = error
    return refused


@attrs.frozen
class Described:
    """Where a table is: what pylance reads of a ``DescribeTableResponse``.

    Attributes:
        location: The URI of the table.
        storage_options: The options to open it with, if they were asked for.
        managed_versioning: Whether commits call `create_table_version`.
        is_reused: Whether another table may get the directory: a caller chose it, or it is named after its table.
    """

    location: str | None
    storage_options: Mapping[str, str] | None = None
    managed_versioning: bool | None = None
    is_reused: bool = False

    def model_dump(self) -> dict[str, Any]:
        """Return the fields, as native code reads them to renew storage options."""
        return attrs.asdict(self)


class CallbackNamespace:
    """The operations that pylance needs while it reads, writes and commits a table.

    pylance calls methods by name, so no base class is needed; `lance_namespace` takes long to import.
    """

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._base: Base | None = None

    def based_on(self, base: Base) -> CallbackNamespace:
        """Return the same namespace for a writer that has read ``base``.

        Its commits are refused in another table.
        """
        namespace = copy(self)
        namespace._base = base
        return namespace

    def namespace_id(self) -> str:
        return f"lancekeep {self._versions.root_uri} with {self._versions.commits.rows.url}"

    @translating
    def describe_table(self, request: Any) -> Described:
        """Return where a table is; with a version, only if the table has it."""
        fields: Request = request if isinstance(request, Mapping) else vars(request)
        table = self._versions.find_table(ObjectId.of(fields["id"]))
        root = self._versions.dataset_root(table)
        version = fields.get("version")
        if version is not None and self._versions.commits.get(root, version) is None:
            raise VersionNotFound(f"the table {table.id} has no version {version}")
        return Described(
            self._versions.uri(table),
            dict(self._versions.storage_options) or None if fields.get("vend_credentials") else None,
            self._versions.managed or None,
            is_reusable(table.location),
        )

    @callback
    def create_table_version(self, request: Request) -> Answer:
        """Commit a staged manifest.

        Native code ignores the answer: no exception means committed.
        """
        table, branch = ObjectId.of(request["id"]), request.get("branch")
        check_staged(request["manifest_path"], request.get("naming_scheme"), request.get("metadata"))
        outcome = self._versions.commit_to(
            table,
            branch,
            request["version"],
            request["manifest_path"],
            request.get("manifest_size"),
            base=self._base,
        )
        committed = raise_unless_committed(outcome, str(table))
        if self._base is not None and self._base.branch == branch and committed.transaction:
            # Garbage collection may remove the version that the writer read before its next commit.
            self._base = Base(committed.version, committed.transaction, branch)
        return {"version": _plain(committed)}

    @callback
    def describe_table_version(self, request: Request) -> Answer:
        """Return one version, by default the latest."""
        root, version = self._root(request), request.get("version")
        commits = self._versions.commits
        row = commits.latest(root) if version is None else commits.get(root, version)
        if row is None:
            raise VersionNotFound(f"{root.base_uri} has no version {'yet' if version is None else version}")
        return {"version": _plain(row)}

    @callback
    def list_table_versions(self, request: Request) -> Answer:
        """List versions.

        The list of a missing branch is empty: native code asks before it creates the branch.
        """
        limit, after, descending = request.get("limit"), request.get("page_token"), request.get("descending")
        rows, token = page(self._versions, self._root(request), limit, after, descending)
        if len(rows) > 1:  # native code asks for one version, the latest, with every open
            rows = [row for row, _ in self._versions.commits.dated(self._root(request), rows)]
        return {"versions": [_plain(row) for row in rows], "page_token": token}

    def _table(self, request: Request) -> Table:
        return self._versions.find_table(ObjectId.of(request["id"]))

    def _root(self, request: Request) -> DatasetRoot:
        return self._versions.dataset_root(self._table(request)).branch(request.get("branch"))


def page(
    versions: Versions, root: DatasetRoot, limit: int | None, after: str | None, descending: bool | None
) -> tuple[Sequence[VersionRow], str | None]:
    """Return one page of versions and the token of the next page, if any.

    The latest version comes first unless ``descending`` is false. A token is the last version of its page.
    """
    limit, descending = checked_limit(limit), descending is not False
    if limit == 1 and after is None and descending:
        latest = versions.commits.latest(root)
        return [latest] if latest else [], str(latest.version) if latest and latest.version > 1 else None
    rows = versions.commits.page(root, _last_version(after), limit and limit + 1, descending)
    token = str(rows[limit - 1].version) if limit and len(rows) > limit else None
    return rows[:limit], token


def checked_limit(limit: int | None) -> int | None:
    """Return the limit of a listing. Raises `InvalidInput` if it is below 1."""
    if limit is not None and limit < 1:
        raise InvalidInput(f"limit is {limit}; give at least 1, or leave it out for everything")
    return limit and min(limit, _MOST)


def check_staged(path: str, scheme: str | None, metadata: object) -> None:
    """Check the fields of a new version that are not stored. Raises `InvalidInput`."""
    if metadata:
        raise InvalidInput("the catalog keeps no metadata of a version; put them into the transaction's properties")
    name = ManifestName.parse(path.rpartition("/")[2])
    if scheme is not None and name is not None and name.scheme.value != scheme:
        raise InvalidInput(f"naming_scheme is {scheme!r}, but {path!r} is a name of scheme {name.scheme.value}")


def _last_version(token: str | None) -> int | None:
    if not token:
        return None
    if not re.fullmatch("[0-9]{1,18}", token):
        raise InvalidInput(f"{token[:40]!r} is not a page token of list_table_versions")
    return int(token)


def _plain(row: VersionRow | Committed) -> Answer:
    return {"version": signed(row.version), "manifest_path": row.path, "manifest_size": row.size}


def signed(version: int) -> int:
    """Return the number of a version as the namespace interface states it.

    The interface has 64 bits with a sign, where only detached versions are negative.
    """
    return version - (version & DETACHED) * 2
