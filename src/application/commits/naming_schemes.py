"""Refuse changes of tables whose manifest names mix the V1 and V2 schemes.

Table format, "Manifest Naming Schemes". A version that is committed to such a table may disappear when the names are
migrated, or readers may never see it. The store of rows does not show a mixture, so the directory is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import takewhile

from lancekeep.application.commits.managed_rows import ManagedRows
from lancekeep.application.commits.protocol_runner import REMEMBERED
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import Damaged
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import ManifestName, NamingScheme, final_names, final_versions
from lancekeep.domain.version_row import scheme_of
from lancekeep.ports.object_store import ObjectStore

_LAST_BEFORE_V2 = NamingScheme.V2.final_name(2**32)
"""Precedes every V2 name of fewer than 2**32 versions, and follows every V1 name of so many."""
_LAST_V2 = NamingScheme.V2.final_name(0)


class NamingSchemes:
    """The check of the manifest names of histories.

    A history is listed before its first change by this process. If its names have one scheme, it is not listed again. A
    mixture is listed again: its migration may be complete by then.

    Args:
        objects: The store of the manifests.
        rows: The rows of the versions.
        retry: Repeats requests that fail.
    """

    def __init__(self, objects: ObjectStore, rows: ManagedRows, retry: Retry) -> None:
        self._objects = objects
        self._rows = rows
        self._retry = retry
        self._accepted: set[str] = set()

    def require_one(self, root: DatasetRoot) -> None:
        """Check that a history may be changed.

        The first check costs at most two pages of a listing, later checks nothing.

        Raises:
            Damaged: Its manifest names mix both schemes, and no `ManifestNamesMigration` has begun. That migration
                needs rows, and begins with a latest version that has a V2 name and a row of this name.
        """
        if root.base_uri in self._accepted:
            return
        if self._retry.call(partial(self._are_mixed, root)):
            self._retry.call(partial(self._refuse, root))
        if len(self._accepted) >= REMEMBERED:
            self._accepted.clear()
        self._accepted.add(root.base_uri)

    def _are_mixed(self, root: DatasetRoot) -> bool:
        """Return whether both schemes occur.

        A V1 name precedes all V2 names, or follows all, so two names suffice.
        """
        first = self._first_scheme(root, "")
        if first is None:
            return False
        other = self._first_scheme(root, _LAST_BEFORE_V2 if first is NamingScheme.V1 else _LAST_V2)
        return other not in (None, first)

    def _first_scheme(self, root: DatasetRoot, after: str) -> NamingScheme | None:
        """Return the scheme of the first final manifest after a name."""
        infos = self._objects.list(root.versions_key, after=after and root.versions_key + after)
        names = (info.key.removeprefix(root.versions_key) for info in infos)
        manifests = map(ManifestName.parse, takewhile(lambda name: name < ":", names))  # not those that are detached
        return next((name.scheme for name in manifests if name is not None and not name.is_staged), None)

    def _refuse(self, root: DatasetRoot) -> None:
        names = [info.key.removeprefix(root.versions_key) for info in self._objects.list(root.versions_key)]
        if self._rows.of(root.base_uri).guarantees.derived:
            final_versions(names, root.base_uri)
        else:
            self._require_row(root, final_names(names, root.base_uri))

    def _require_row(self, root: DatasetRoot, names: Mapping[int, str]) -> None:
        """Raise `Damaged` if pylance has renamed the manifest of the latest version, and its row has the old name."""
        latest = max(names, default=0)
        row = self._rows.get(root.base_uri, latest)
        if row is not None and scheme_of(row) is NamingScheme.V1:
            raise Damaged(
                f"{root.base_uri} mixes the V1 and V2 manifest naming schemes, and the row of version {latest} names "
                f"{row.path.rpartition('/')[2]!r}, which was renamed to {names[latest]!r} without the commit store. "
                "Call migrate_manifest_names (`lancekeep migrate-names`), which completes the migration and corrects "
                "the rows."
            )
