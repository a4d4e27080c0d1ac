"""Where the files of a dataset lie (storage layout specification).

Keys are paths inside one object store, as the native engine writes them: no scheme, no bucket, no leading slash.
"""

from __future__ import annotations

import attrs

from lancekeep.domain.identifiers import check_name
from lancekeep.domain.naming import NamingScheme

VERSIONS = "_versions"
BRANCHES = "tree"


@attrs.frozen
class DatasetRoot:
    """A place with a history of versions: a table, or a branch of one.

    ``key`` is the dataset root inside its object store, ``base_uri`` the same place with scheme and bucket, under
    which the commit store keeps the history.
    """

    key: str
    base_uri: str
    is_branch: bool = False

    def branch(self, name: str | None) -> DatasetRoot:
        """The root of a branch, ``tree/{branch}`` below the table's; None is the main branch, the table itself.

        Raises `InvalidInput` for what is no name of a branch: names like those of tables, with ``/`` between them.
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

    def manifest_key(self, version: int, scheme: NamingScheme) -> str:
        """The key of a committed version's manifest."""
        return self.versions_key + scheme.final_name(version)
