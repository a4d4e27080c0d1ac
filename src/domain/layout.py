"""The locations of a dataset's files (storage layout specification).

Keys are paths inside one object store, as the native engine writes them: no scheme, no bucket, no leading slash.
"""

from __future__ import annotations

import attrs

from lancekeep.domain.identifiers import check_name
from lancekeep.domain.naming import NamingScheme

VERSIONS = "_versions"
BRANCHES = "tree"
HINT = "latest_version_hint.json"
"""A file in ``_versions`` that names a recent version; a search for the latest version may start there."""


@attrs.frozen
class DatasetRoot:
    """The root of a dataset with its own history: a table, or a branch of a table.

    Attributes:
        key: the dataset root in its object store.
        base_uri: the same root with scheme and bucket; the commit store keeps the history under it.
        is_branch: whether the dataset is a branch.
    """

    key: str
    base_uri: str
    is_branch: bool = False

    def branch(self, name: str | None) -> DatasetRoot:
        """Return the root of a branch, ``tree/{branch}``; None is the main branch.

        Raises:
            InvalidInput: the name is not valid. A branch name consists of valid table names with ``/`` in between.
        """
        if name is None:
            return self
        names = tuple(name.split("/"))
        for part in names:
            check_name(part, names)
        return DatasetRoot(f"{self.key}/{BRANCHES}/{name}", f"{self.base_uri}/{BRANCHES}/{name}", is_branch=True)

    @property
    def versions_key(self) -> str:
        """The directory of manifests, with a trailing slash."""
        return f"{self.key}/{VERSIONS}/"

    @property
    def hint_key(self) -> str:
        """The key of the version hint."""
        return self.versions_key + HINT

    def manifest_key(self, version: int, scheme: NamingScheme) -> str:
        """Return the key of the final manifest of a version."""
        return self.versions_key + scheme.final_name(version)
