"""The LSM writes of a table, which no version contains before they are merged.

Table format, "MemTable & WAL Specification". Writers of a *shard* acknowledge rows in its log, flush the log to
numbered *generations*, which are datasets of their own, and record both in numbered manifests of the shard. A later
version of the table merges generations. All these files lie in ``_mem_wal/{shard}`` of the table or of a branch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.layout import BRANCHES

MEM_WAL_DIRECTORY = "_mem_wal"

LSM = "lancekeep.lsm"
"""The table property that permits LSM writes to a table whose versions a commit store manages."""
_ALLOWED = "allowed"

_PATH = re.compile(
    rf"(?:{BRANCHES}/(?P<branch>.+)/)?{MEM_WAL_DIRECTORY}/"
    r"(?P<shard>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/(?P<rest>.+)"
)
_NUMBERED = re.compile(r"(manifest|wal)/([01]{64})\.(?:binpb|arrow)")
_GENERATION = re.compile(r"[0-9a-f]{8}_gen_[0-9]+/(.+)")
_OF_GENERATION = re.compile(r"bloom_filter\.bin|_pk_index/[^/]+")
_HINT = "manifest/version_hint.json"


@attrs.frozen
class WalFile:
    """A file of LSM writes.

    Attributes:
        branch: the branch, or "" for the table itself.
        shard: the id of the shard.
        rest: the path below the directory of the shard.
    """

    branch: str
    shard: str
    rest: str

    @staticmethod
    def of(path: str) -> WalFile | None:
        """Parse a path relative to the table; None for any other file."""
        found = _PATH.fullmatch(path)
        return WalFile(found["branch"] or "", found["shard"], found["rest"]) if found else None

    @property
    def manifest(self) -> int | None:
        """The number of a manifest of the shard; None for any other file."""
        return self._number("manifest")

    @property
    def log_entry(self) -> int | None:
        """The position of an entry of the log; None for any other file."""
        return self._number("wal")

    @property
    def in_generation(self) -> str | None:
        """The path below the generation that has the file; None for any other file."""
        found = _GENERATION.fullmatch(self.rest)
        return found[1] if found else None

    @property
    def is_named_by_lance(self) -> bool:
        """Whether LSM writers name files like this; files of datasets are left out."""
        inside = self.in_generation
        if inside is not None:
            return _OF_GENERATION.fullmatch(inside) is not None
        return self.rest == _HINT or _NUMBERED.fullmatch(self.rest) is not None

    def _number(self, directory: str) -> int | None:
        """Return the number that the digits of a name give, from the lowest digit to the highest."""
        found = _NUMBERED.fullmatch(self.rest)
        return int(found[2][::-1], 2) if found and found[1] == directory else None


@attrs.frozen
class ShardState:
    """The state of a shard, as its latest manifest describes it.

    Attributes:
        generations: the numbers of its generations.
        flushed: the position of the last log entry whose rows are in a generation.
    """

    generations: tuple[int, ...]
    flushed: int

    def unmerged(self, merged: int, logged: bool) -> int:
        """Return how many generations the table lacks.

        The rest of the log counts as one more generation.

        Args:
            merged: the last generation that the table has merged; 0 for none.
            logged: whether log entries after the flushed ones have rows.
        """
        return sum(generation > merged for generation in self.generations) + logged


def permits_lsm(properties: Mapping[str, str]) -> bool:
    """Return whether the properties of a table permit LSM writes."""
    return properties.get(LSM) == _ALLOWED


def checked_lsm(value: str) -> None:
    """Raise `InvalidInput` unless a value of the property `LSM` has a meaning."""
    if value != _ALLOWED:
        raise InvalidInput(
            f"the property {LSM!r} is {value!r}; the only value is {_ALLOWED!r}. Remove the property "
            "to refuse LSM writes"
        )
