"""The directories outside of the root that hold data files of tables.

Each lies below a base that the catalog records, and has a marker with the identity of its catalog. Several catalogs may
share a base. Nothing is removed from a directory unless its marker has the identity of this catalog.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TypeVar

import attrs

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.outside import OutsideDirectory
from lancekeep.application.entries.places import Places
from lancekeep.domain.catalog import CatalogView, Change, SetProperties
from lancekeep.domain.dataset_files import Place
from lancekeep.domain.errors import Damaged, InvalidInput, NotFound, ObjectNotFound, Refused
from lancekeep.domain.identity import Identity, identity_in
from lancekeep.domain.manifest_entry import OWN_PROPERTIES
from lancekeep.domain.table import Table
from lancekeep.ports.object_store import ObjectInfo

BASES_PROPERTY = f"{OWN_PROPERTIES}bases"
"""The property of the root namespace with the directories, as a JSON list, that hold data files of tables."""

BASE_MARKER = ".lancekeep-base"
"""A file in the directory of one table below a base. It contains the identity of the catalog."""

T = TypeVar("T")

PropertiesAt = Callable[[str], Mapping[str, str]]
"""Returns the properties of the root namespace of the catalog at a root; empty if there is no catalog."""


@attrs.frozen
class Bases:
    """The bases of one catalog, and its directories below them."""

    ledger: Ledger
    places: Places

    # -- use ----------------------------------------------------------------------------------------------------

    def directory(self, base: OutsideDirectory, table: Table, identity: Identity) -> OutsideDirectory:
        """Return the directory of a table below a base.

        Raises:
            InvalidInput: The base lies in the root.
        """
        places = self.places
        if base.objects is places.objects and f"{base.key}/".startswith(places.prefix or "/" * (not base.key)):
            raise InvalidInput(
                f"the base {base.uri!r} lies in the root of the catalog, where every directory is a table; choose a "
                "directory outside of it, or another bucket"
            )
        return _below(base, sha256(f"{identity.id}/{table.location}".encode()).hexdigest()[:16])

    def claim(self, base: OutsideDirectory, directory: OutsideDirectory, identity: Identity) -> None:
        """Record a base, and mark a directory below it. Idempotent.

        Raises:
            Refused: The directory belongs to another catalog.
        """
        self.ledger.apply(partial(_with_base, base.uri))
        found = self._marker(directory)
        if found is None:
            self._mark(directory, identity)
        elif found != identity:
            raise Refused(f"{directory.uri}: {_taken_over(found)}. Nothing was moved")

    # -- clean-up -----------------------------------------------------------------------------------------------

    def found(self) -> Iterator[tuple[OutsideDirectory, str]]:
        """Yield the directories that may belong to the catalog.

        Each comes with the reason why nothing in it is removed. The reason is empty for the catalog's own directories.
        Directories of other catalogs are left out. The bases come from the last view of the catalog.
        """
        for directory, marker in self._marked():
            refusal = self._refusal(identity_in(self.ledger.recent().properties), marker)
            if refusal is not None:
                yield directory, refusal

    def files(self, directory: OutsideDirectory) -> list[tuple[bytes, ObjectInfo]]:
        """Return the files of a directory that have random names, with these names."""
        infos = self._retry(lambda: list(directory.objects.list(f"{directory.key}/")))
        placed = [(Place.of(info.key.removeprefix(f"{directory.key}/")), info) for info in infos]
        return [(place.own_name, info) for place, info in placed if place is not None and place.own_name]

    def is_own(self, directory: OutsideDirectory) -> bool:
        """Return whether a directory belongs to the catalog now."""
        marker = self._marker(directory)
        return marker is not None and self._refusal(self.ledger.identity(), marker) == ""

    def _refusal(self, identity: Identity | None, marker: Identity) -> str | None:
        """Return why nothing may be removed.

        Returns:
            The reason; empty for a directory of this catalog, None for a directory of another catalog.
        """
        root = self.places.root_uri
        if not marker.id:
            if marker.root not in {root, identity.root if identity else root}:
                return None
            return (
                "its marker has no identity, because an earlier release wrote it; nothing is removed. If it belongs to "
                "this catalog, call adopt_identity(original=True) or `lancekeep adopt-identity --original`"
            )
        if identity is None or marker.id != identity.id:
            return None
        try:
            identity.require_at(root)
        except Refused as error:
            return f"{error}. Nothing is removed"
        return "" if marker.root == root else f"{_taken_over(marker)}. Nothing is removed"

    # -- adoption -----------------------------------------------------------------------------------------------

    def adopt_identity(self, *, original: bool, properties_at: PropertiesAt) -> Identity:
        """Record this root in the identity; see `Upkeep.adopt_identity`."""
        if not original:
            self.ledger.take_store()
            return self.ledger.adopt_identity(None)
        before = identity_in(self.ledger.fresh().properties)
        if before is not None and before.root != self.places.root_uri:
            _require_gone(before, properties_at)
        self.ledger.take_store()
        adopted = self.ledger.adopt_identity(None if before is None else before.id)
        former = Identity("", adopted.root if before is None else before.root)
        for directory, marker in self._marked():
            if marker != adopted and (marker.id == adopted.id or marker in (former, Identity("", adopted.root))):
                self._mark(directory, adopted)
        return adopted

    # -- inside -------------------------------------------------------------------------------------------------

    def _marked(self) -> Iterator[tuple[OutsideDirectory, Identity]]:
        for uri in _bases_in(self.ledger.recent().properties):
            base = self.places.outside(uri)
            for directory in self._retry(partial(_directories, base)):
                marker = self._marker(directory)
                if marker is not None:
                    yield directory, marker

    def _marker(self, directory: OutsideDirectory) -> Identity | None:
        try:
            content = self._retry(partial(directory.objects.get, f"{directory.key}/{BASE_MARKER}"))
        except ObjectNotFound:
            return None
        return Identity.of_marker(content.decode(errors="replace"))

    def _mark(self, directory: OutsideDirectory, identity: Identity) -> None:
        self._retry(partial(directory.objects.put, f"{directory.key}/{BASE_MARKER}", identity.text().encode()))

    def _retry(self, act: Callable[[], T]) -> T:
        return self.ledger.commits.retry.call(act)


def _below(base: OutsideDirectory, name: str) -> OutsideDirectory:
    return OutsideDirectory(base.objects, f"{base.key}/{name}".lstrip("/"), f"{base.uri.rstrip('/')}/{name}")


def _directories(base: OutsideDirectory) -> list[OutsideDirectory]:
    return [_below(base, name) for name in base.objects.directories(f"{base.key}/" if base.key else "")]


def _taken_over(marker: Identity) -> str:
    return (
        f"the catalog at {marker.root} has the same identity and has taken the directory over. If the catalog here is "
        "a copy, call adopt_identity() or `lancekeep adopt-identity`"
    )


def _bases_in(properties: Mapping[str, str]) -> list[str]:
    text = properties.get(BASES_PROPERTY, "[]")
    with suppress(ValueError, RecursionError):
        match json.loads(text):
            case [*uris] if all(isinstance(uri, str) for uri in uris):
                return uris
    raise Damaged(
        f"the property {BASES_PROPERTY!r} of the catalog is {text[:100]!r}; expected a JSON list of URIs: the "
        "directories that hold data files of its tables. Restore it, or files there are never removed"
    )


def _with_base(uri: str, view: CatalogView) -> tuple[list[Change], None]:
    bases = _bases_in(view.properties)
    changes: list[Change] = [] if uri in bases else [SetProperties({BASES_PROPERTY: json.dumps([*bases, uri])})]
    return changes, None


def _require_gone(identity: Identity, properties_at: PropertiesAt) -> None:
    """Check that no catalog has an identity at the root that the identity names.

    Raises:
        Refused: A catalog there has it.
    """
    try:
        there = identity_in(properties_at(identity.root))
    except NotFound:  # such as a bucket that was deleted
        return
    if there == identity:
        raise Refused(
            f"the catalog at {identity.root} still has the identity, so this catalog is a copy; nothing was changed. "
            "Call adopt_identity() or `lancekeep adopt-identity` without the option to give the copy a new identity"
        )
