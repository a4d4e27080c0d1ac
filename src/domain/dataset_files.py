"""Which files of a dataset its manifests need, told by the random names that the engine gives them.

A data file, an index and a transaction bear a UUID, or a name as random; a deletion file a random number of 64 bits. So
a file is needed exactly where its name stands in a manifest: of whichever table, under whichever spelling of a base
path (storage layout, "Base Path System"), in messages of later formats too. On local storage a file has another name
until it is whole, which no manifest has. What bears no such name is nobody's to remove.
"""

from __future__ import annotations

import json
import re

import attrs

from lancekeep.domain.errors import Damaged
from lancekeep.domain.layout import BRANCHES, VERSIONS
from lancekeep.domain.naming import ManifestName
from lancekeep.format.manifest import fields, message_at, section_at

DATA, DELETIONS, TRANSACTIONS, INDICES, REFERENCES = "data", "_deletions", "_transactions", "_indices", "_refs"
DIRECTORIES = frozenset((DATA, DELETIONS, TRANSACTIONS, INDICES, REFERENCES, VERSIONS))

_UUID = rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_RANDOM = rb"[01]{24}[0-9a-f]{26}"  # three bytes in binary, so that names spread over the storage, then the rest
_OWN = {
    DATA: re.compile(b"(" + _RANDOM + rb"(?=[./]|$)|" + _UUID + rb"(?=\.lance$))(?:[./].*)?"),
    TRANSACTIONS: re.compile(rb"\d+-(" + _UUID + rb")\.txn"),
    INDICES: re.compile(b"(" + _UUID + b")/.*"),
}
_DELETION = re.compile(r"[0-9]+-[0-9]+-([0-9]{1,20})\.(?:arrow|bin)")
_UNFINISHED = re.compile(r"\.tmp[0-9A-Za-z]{6}|(.+)#[0-9]+")  # as the engine and the object_store crate name them
_SMALLEST_ID = 1 << 28  # a smaller number takes too few bytes to be told from others; one in 2**36 is smaller

# Lookaheads, since a length that happens to look like the first character of a name stands before it.
_NAMES = re.compile(b"(?=(" + _RANDOM + b"|" + _UUID + b"))")
_INDEX_UUID = re.compile(rb"(?=\x0a\x10(.{16}))", re.DOTALL)  # message Uuid { bytes uuid = 1; }
_DELETION_ID = re.compile(rb"(?=\x18([\x80-\xff]{4,9}[\x01-\x7f]))")  # message DeletionFile { uint64 id = 3; }

_INDEX_SECTION = 6


@attrs.frozen
class Place:
    """Where a file of a table lies. branch: "" for the table itself. rest: its path below ``directory``."""

    branch: str
    directory: str
    rest: str

    @staticmethod
    def of(path: str) -> Place | None:
        """Understand a path relative to the table; None for what is not in one of a dataset's directories."""
        parts = path.split("/")
        at = next((at for at in range(len(parts) - 2, -1, -1) if parts[at] in DIRECTORIES), None)
        if at is None or at == 1 or (at and parts[0] != BRANCHES):
            return None
        return Place("/".join(parts[1:at]), parts[at], "/".join(parts[at + 1 :]))

    @property
    def is_unfinished(self) -> bool:
        """Whether the engine has not come to the end of writing it: to local storage, under a name of its own."""
        directory, slash, name = self.rest.rpartition("/")
        match = _UNFINISHED.fullmatch(name)
        if match is None or match[1] is None:
            return match is not None
        whole = attrs.evolve(self, rest=directory + slash + match[1])
        return ManifestName.parse(match[1]) is not None if self.directory == VERSIONS else whole.is_generated

    @property
    def is_generated(self) -> bool:
        """Whether the engine gives files of this directory such names, which contain random digits."""
        if self.directory == DELETIONS:
            return self.is_unfinished or _DELETION.fullmatch(self.rest) is not None
        return self.own_name is not None

    @property
    def own_name(self) -> bytes | None:
        """The random name by which manifests refer to the file, or will never; None where it has none."""
        if self.is_unfinished:
            return self.rest.encode(errors="replace")
        if self.directory == DELETIONS:
            match = _DELETION.fullmatch(self.rest)
            return _deletion(int(match[1])) if match and int(match[1]) >= _SMALLEST_ID else None
        pattern = _OWN.get(self.directory)
        found = pattern.fullmatch(self.rest.encode(errors="replace")) if pattern else None
        return found[1] if found else None


def names_in(content: bytes, name: str) -> set[bytes]:
    """The random names of all files that a version needs; ``content`` is the manifest's, ``name`` for the message.

    The transaction inside the file is left out: it also names what the version replaced. Raises `Damaged`.
    """
    try:
        manifest = message_at(content)
        sections = [bytes(manifest)]
        for number, position in fields(manifest):
            if number == _INDEX_SECTION and isinstance(position, int):
                sections.append(bytes(section_at(content, position)))
    except (IndexError, ValueError) as error:
        raise Damaged(f"{name} is not a manifest of a Lance table: {error}") from error
    names: set[bytes] = set()
    for section in sections:
        names.update(match[1] for match in _NAMES.finditer(section))
        names.update(uuid_text(match[1]).encode() for match in _INDEX_UUID.finditer(section))
        names.update(_deletion(_varint(match[1])) for match in _DELETION_ID.finditer(section))
    return names


@attrs.frozen
class Reference:
    """A tag, or the point at which a branch begins: ``version`` of ``branch`` ("": of the table itself)."""

    branch: str
    version: int

    @staticmethod
    def parse(content: bytes, name: str) -> Reference:
        """Understand a file below ``_refs/``. Raises `Damaged`."""
        try:
            found = json.loads(content)
            branch, version = (
                (found["parentBranch"], found["parentVersion"])
                if "parentVersion" in found
                else (found["branch"], found["version"])
            )
            if not isinstance(version, int) or not isinstance(branch, str | None):
                raise ValueError("its branch is no text, or its version no number")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Damaged(f"{name} is not a tag or branch: {error!r}") from error
        return Reference("" if branch in (None, "main") else branch, version)


def uuid_text(content: bytes) -> str:
    """The text of a UUID of 16 bytes."""
    digits = content.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _deletion(number: int) -> bytes:
    return b"deletion %d" % number


def _varint(content: bytes) -> int:
    return sum((byte & 0x7F) << (7 * at) for at, byte in enumerate(content))
