"""What a decision asks about the catalog.

So a store can tell whether later changes affect the decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn

import attrs

from lancekeep.domain.catalog import CatalogView, ManifestStoreGuarantees
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import ManifestEntry


class TooMuchAsked(Exception):
    """A decision asks for a list of entries, or for the version.

    Any later change may affect the answer.
    """


@attrs.define
class Questions:
    """What was asked about single entries.

    Attributes:
        object_ids: The ids whose entries were asked for.
        locations: The locations whose owners were asked for.
        are_narrow: Whether nothing else was asked, except what the root and the columns are.
    """

    object_ids: set[str] = attrs.field(factory=set)
    locations: set[str] = attrs.field(factory=set)
    are_narrow: bool = True


class QuestionedView:
    """A view that notes what a decision asks.

    Raises:
        TooMuchAsked: By all questions whose answers any change may affect.
    """

    def __init__(self, view: CatalogView) -> None:
        self._view = view
        self.questions = Questions()

    @property
    def version(self) -> int:
        self._refuse()

    @property
    def guarantees(self) -> ManifestStoreGuarantees:
        return self._view.guarantees

    @property
    def unnamed(self) -> int:
        return self._view.unnamed

    @property
    def properties(self) -> Mapping[str, str]:
        return self._view.properties

    @property
    def entered(self) -> Mapping[str, str]:
        return self._view.entered

    @property
    def columns(self) -> Mapping[str, str]:
        return self._view.columns

    def find(self, object_id: str) -> ManifestEntry | None:
        self.questions.object_ids.add(object_id)
        return self._view.find(object_id)

    def owner_of(self, location: str) -> ManifestEntry | None:
        self.questions.locations.add(location)
        return self._view.owner_of(location)

    def children(
        self, parent: ObjectId, object_type: str, after: str | None = None, limit: int | None = None
    ) -> tuple[list[str], str | None]:
        self._refuse()

    def descendants(self, parent: ObjectId) -> Iterator[ManifestEntry]:
        self._refuse()

    def all_of(self, object_type: str, after: str | None = None) -> Iterator[ManifestEntry]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        self.questions.are_narrow = False  # a decision may handle the error
        raise TooMuchAsked
