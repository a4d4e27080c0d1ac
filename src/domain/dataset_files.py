"""The files of a dataset, by their places and names.

Table format, "Deletion Files"; storage layout specification.

The Lance engine gives files random names: a UUID or as many random digits for data files, indexes and transactions, 64
random bits for deletion files. A file is therefore needed if and only if its name occurs in a manifest, whatever the
table, the spelling of a base path or the format version. On local storage an incomplete file has a temporary name; no
manifest holds it. A file without a random name is never removed.
"""

from __future__ import annotations

import re

import attrs

from lancekeep.domain.layout import BRANCHES, VERSIONS
from lancekeep.domain.mem_wal import WalFile
from lancekeep.domain.naming import ManifestName

DATA, DELETIONS, TRANSACTIONS, INDICES, REFERENCES = "data", "_deletions", "_transactions", "_indices", "_refs"
DIRECTORIES = frozenset((DATA, DELETIONS, TRANSACTIONS, INDICES, REFERENCES, VERSIONS))

UUID = rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
RANDOM_NAME = rb"[01]{24}[0-9a-f]{26}"  # The binary digits spread names over the partitions of an object store.
_OWN = {
    DATA: re.compile(b"(" + RANDOM_NAME + rb"(?=[./]|$)|" + UUID + rb"(?=\.lance$))(?:[./].*)?"),
    TRANSACTIONS: re.compile(rb"\d+-(" + UUID + rb")\.txn"),
    INDICES: re.compile(b"(" + UUID + b")/.*"),
}
_DELETION = re.compile(r"[0-9]+-[0-9]+-([0-9]{1,20})\.(?:arrow|bin)")
_UNFINISHED = re.compile(r"\.tmp[0-9A-Za-z]{6}|(.+)#[0-9]+")  # Names that the engine and its object_store crate use.
_SMALLEST_ID = 1 << 28  # A smaller number has too few bytes to be recognized in a manifest. One in 2**36 is smaller.


@attrs.frozen
class Place:
    """Where a file of a table lies.

    Attributes:
        branch: the branch, or "" for the table itself.
        directory: one of `DIRECTORIES`.
        rest: the path below ``directory``.
    """

    branch: str
    directory: str
    rest: str

    @staticmethod
    def of(path: str) -> Place | None:
        """Parse a path relative to the table.

        Returns:
            None outside a dataset's directories. The datasets of LSM writes do not belong to the table.
        """
        if WalFile.of(path) is not None:
            return None
        parts = path.split("/")
        at = next((at for at in range(len(parts) - 2, -1, -1) if parts[at] in DIRECTORIES), None)
        if at is None or at == 1 or (at and parts[0] != BRANCHES):
            return None
        return Place("/".join(parts[1:at]), parts[at], "/".join(parts[at + 1 :]))

    @property
    def is_unfinished(self) -> bool:
        """Whether the file has the temporary name of an incomplete file on local storage."""
        directory, slash, name = self.rest.rpartition("/")
        match = _UNFINISHED.fullmatch(name)
        if match is None or match[1] is None:
            return match is not None
        whole = attrs.evolve(self, rest=directory + slash + match[1])
        return ManifestName.parse(match[1]) is not None if self.directory == VERSIONS else whole.is_generated

    @property
    def is_generated(self) -> bool:
        """Whether the file has a random name, as the engine generates it."""
        if self.directory == DELETIONS:
            return self.is_unfinished or _DELETION.fullmatch(self.rest) is not None
        return self.own_name is not None

    @property
    def own_name(self) -> bytes | None:
        """The random name under which manifests refer to the file; None if it has none.

        No manifest refers to the name of an incomplete file.
        """
        if self.is_unfinished:
            return self.rest.encode(errors="replace")
        if self.directory == DELETIONS:
            match = _DELETION.fullmatch(self.rest)
            return deletion_name(int(match[1])) if match and int(match[1]) >= _SMALLEST_ID else None
        pattern = _OWN.get(self.directory)
        found = pattern.fullmatch(self.rest.encode(errors="replace")) if pattern else None
        return found[1] if found else None


@attrs.frozen
class Reference:
    """The version that a tag names, or at which a branch begins.

    Attributes:
        branch: the branch of that version, or "" for the table itself.
        version: its number.
    """

    branch: str
    version: int


def data_file_name(random: bytes) -> str:
    """Return the name of a new data file: 24 binary digits, 26 hexadecimal ones.

    Storage layout, "Data File Naming". The binary digits spread the names over the partitions of an object store.

    Args:
        random: 16 random bytes.
    """
    return f"{int.from_bytes(random[:3]):024b}{random[3:].hex()}.lance"


def deletion_file_name(fragment: int, read_version: int, number: int, *, bitmap: bool) -> str:
    """Return the name of a deletion file, a Roaring bitmap or an Arrow file."""
    return f"{fragment}-{read_version}-{number}.{'bin' if bitmap else 'arrow'}"


def deletion_name(number: int) -> bytes:
    """Return the random name of a deletion file, as `Place.own_name` does."""
    return b"deletion %d" % number
