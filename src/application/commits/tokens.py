"""Commit tokens, confined to one catalog: a token is untrusted input."""

from __future__ import annotations

from collections.abc import Callable

from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.dropped import is_record
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.layout import BRANCHES, DatasetRoot
from lancekeep.domain.table import Table, confined


def parse_token(
    token: CommitToken | str, view: CatalogView, root_uri: str, place: Callable[[Table], DatasetRoot]
) -> tuple[CommitToken, str]:
    """Parse a token, and check that its tables are in the catalog.

    Args:
        token: A token, or its text.
        view: The catalog's entries.
        root_uri: The catalog's root, with a trailing slash.
        place: Returns the dataset root of a table.

    Returns:
        The token, and the reason why it cannot be settled; empty if it can.

    Raises:
        InvalidInput: The text is not a token, or it names a location outside the catalog.
        Damaged: A symbolic link leads to a table of the token.
    """
    known = CommitToken.parse(str(token))
    missing = [member.base_uri for member in known.members if _root_of(member, view, root_uri, place) is None]
    if not missing:
        return known, ""
    return known, (
        f"the catalog has no table at {missing[0]}: the table was dropped, renamed or deregistered. Register a "
        "deregistered table, or bring a dropped one back with undrop, and resolve the token again"
    )


def _root_of(
    staged: StagedManifest, view: CatalogView, root_uri: str, place: Callable[[Table], DatasetRoot]
) -> DatasetRoot | None:
    """Return the dataset root that a member of a token names.

    Returns:
        None if the catalog has no table there.
    """
    location = staged.base_uri.removeprefix(root_uri)
    if not staged.base_uri.startswith(root_uri) or confined(location) != location:
        raise _outside(staged, root_uri)
    entry = view.owner_of(location)
    table = None if entry is None or is_record(entry) else Table.from_entry(entry)
    if table is None or not f"{location}/".startswith(f"{table.location}/"):
        return None
    below = location.removeprefix(table.location).removeprefix("/")
    if below and not below.startswith(f"{BRANCHES}/"):
        raise _outside(staged, root_uri)
    root = place(table).branch(below.removeprefix(f"{BRANCHES}/") or None)
    begins = staged.version == 1 or root.is_branch or not staged.begins
    if root.base_uri != staged.base_uri or staged.path.rpartition("/")[0] + "/" != root.versions_key or not begins:
        raise _outside(staged, root_uri)
    return root


def _outside(staged: StagedManifest, root_uri: str) -> InvalidInput:
    return InvalidInput(
        f"the token names version {staged.version} at {staged.path!r:.200} of {staged.base_uri!r:.200}, which is not a "
        f"dataset of the catalog at {root_uri}. Resolve a token in the catalog that created it; nothing was changed."
    )
