"""Batches of streams into a partitioned namespace.

The change that publishes a batch also records it, as a property of the root. So a batch is published once, whichever
process repeats it.
"""

from __future__ import annotations

import re

import attrs

from lancekeep.domain.batches import is_repeated
from lancekeep.domain.catalog import CatalogView, SetProperties
from lancekeep.domain.errors import InvalidInput, Refused
from lancekeep.domain.partitioning import RECORD

_QUERY = re.compile(r"[0-9A-Za-z-]{1,64}")
_NUMBER = re.compile(r"[0-9]{1,19}")


@attrs.frozen
class Batch:
    """A batch of a streaming query.

    Attributes:
        query: The id of the query.
        number: The number of the batch; the first is 0.
        ignores_missing: Whether the batch may follow batches of which there is no record.
    """

    query: str = attrs.field()
    number: int
    ignores_missing: bool = False

    @query.validator
    def _is_id(self, _: object, query: str) -> None:
        if not _QUERY.fullmatch(query):
            raise InvalidInput(f"{query[:80]!r} is no id of a query; expected letters, digits and hyphens, at most 64")

    @property
    def record(self) -> SetProperties:
        """The change that records the batch."""
        return SetProperties({self._property: str(self.number)})

    def is_published(self, view: CatalogView) -> bool:
        """Return whether a catalog has the batch.

        Raises:
            Refused: There is no record of earlier batches, or one of a later batch.
        """
        last = view.properties.get(self._property)
        if last is not None and _NUMBER.fullmatch(last):
            return is_repeated("the partitioned table", self.query, int(last), self.number)
        if self.number and not self.ignores_missing:
            raise Refused(
                f"the partitions hold no batch of the query {self.query}, whose next batch is {self.number}: they were "
                "dropped and created again, or replaced. Start the query with a new checkpoint to write all rows of "
                "its source, or continue with the option ignore_removed_versions=true to write only the rows that are "
                "left."
            )
        return False

    @property
    def _property(self) -> str:
        return RECORD + self.query
