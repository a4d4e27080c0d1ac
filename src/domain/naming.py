"""Names of manifests below ``_versions/``.

Table format, "Manifest Naming Schemes" and "External Manifest Store".

=========================================  ==============================================================
name                                       meaning
=========================================  ==============================================================
``{version}.manifest``                     V1, final
``{u64::MAX - version:020}.manifest``      V2, final: names sort from the newest version to the oldest
``d{version}.manifest``                    detached: a version of no history, with the highest bit set
each, followed by ``-{uuid}``              staged: written, but not yet a version of the table
=========================================  ==============================================================

All other files in the directory (version hints, temporary files) are not manifests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache

import attrs

from lancekeep.domain.errors import Damaged

U64_MAX = 2**64 - 1
DETACHED = 2**63
"""The bit that the numbers of detached versions have set."""
_MOST_DIGITS = 20
_NAME = re.compile(r"(?P<number>[0-9]{1,20})\.manifest(?:-(?P<uuid>[0-9A-Za-z-]+))?")
_UUID = re.compile("[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


class NamingScheme(Enum):
    """How the manifest of a version is named.

    A table uses one scheme, except during a migration to V2.
    """

    V1 = "V1"
    V2 = "V2"

    def final_name(self, version: int) -> str:
        """Return the name of the final manifest of a version."""
        if self is NamingScheme.V1:
            return f"{version}.manifest"
        return f"{U64_MAX - version:020}.manifest"


@attrs.frozen
class ManifestName:
    """The parsed file name of a manifest.

    Attributes:
        version: the number of the version.
        scheme: its naming scheme.
        uuid: the text after ``.manifest-`` of a staged manifest; None for a final one.
    """

    version: int
    scheme: NamingScheme
    uuid: str | None = None

    @staticmethod
    @lru_cache(4096)  # Every read of a row parses the same few names.
    def parse(name: str) -> ManifestName | None:
        """Parse a file name without directory; None if it names no manifest.

        Twenty digits mean V2, as in the native engine. No V1 table reaches a version of that length.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        number, uuid = match["number"], match["uuid"]
        if len(number) == 20:
            if int(number) > U64_MAX:
                return None
            return ManifestName(U64_MAX - int(number), NamingScheme.V2, uuid)
        return ManifestName(int(number), NamingScheme.V1, uuid)

    @property
    def is_staged(self) -> bool:
        return self.uuid is not None

    @property
    def is_generated(self) -> bool:
        """Whether the name was generated for a staged manifest, not for a copy."""
        return self.uuid is not None and _UUID.fullmatch(self.uuid) is not None


def detached_name(version: int) -> str:
    """Return the name of the final manifest of a detached version."""
    return f"d{version}.manifest"


def parse_detached(name: str) -> int | None:
    """Return the number in the name of a detached manifest; None for other names."""
    number = name.removeprefix("d").removesuffix(".manifest")
    found = int(number) if number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS else 0
    return found if DETACHED <= found <= U64_MAX and name == detached_name(found) else None


def is_detached_name(name: str) -> bool:
    """Return whether a manifest, final or staged, belongs to a detached version."""
    return name.startswith("d") and ManifestName.parse(name[1:]) is not None


def detached_version(version: int) -> int | None:
    """Return the number of a detached version as in its name.

    Returns None for a version of a history. Requests of the engine have numbers of 64 bits with a sign.
    """
    number = version % (U64_MAX + 1)
    return number if number & DETACHED else None


def final_path(path: str) -> str:
    """Return the key of the final manifest for a staged or a final key."""
    return path.rpartition(".manifest")[0] + ".manifest"


def final_names(names: Iterable[str], directory: str) -> dict[int, str]:
    """Return the names of the final manifests in a ``_versions`` directory.

    The names of a table that is migrated from V1 to V2 are mixed until the migration ends. Its latest version has a V2
    name from the beginning, and an older version may have both names.

    Args:
        names: the names of the files in the directory. Staged manifests and unknown names are ignored.
        directory: the directory, for the message.

    Returns:
        The name of each version, in ascending order of versions; the V2 name if a version has both.

    Raises:
        Damaged: the schemes are mixed in another way. "It is an error for there to be a mixture of these two naming
            schemes."
    """
    found = [(parsed, name) for name in names if (parsed := ManifestName.parse(name)) and not parsed.is_staged]
    found.sort(key=lambda each: (each[0].version, each[0].scheme is NamingScheme.V2))
    if found and found[-1][0].scheme is NamingScheme.V1:
        _require_one_scheme([parsed for parsed, _ in found], directory)
    return {parsed.version: name for parsed, name in found}


def final_versions(names: Iterable[str], directory: str) -> tuple[NamingScheme | None, list[int]]:
    """Return the naming scheme of a ``_versions`` directory and its versions.

    Args:
        names: the names of the files in the directory. Staged manifests and unknown names are ignored.
        directory: the directory, for the message.

    Returns:
        The scheme, or None without versions, and the versions in ascending order.

    Raises:
        Damaged: both schemes occur.
    """
    finals = [parsed for parsed in map(ManifestName.parse, names) if parsed is not None and not parsed.is_staged]
    _require_one_scheme(finals, directory)
    return next((parsed.scheme for parsed in finals), None), sorted(parsed.version for parsed in finals)


def _require_one_scheme(finals: list[ManifestName], directory: str) -> None:
    v1, v2 = ([each for each in finals if each.scheme is scheme] for scheme in NamingScheme)
    if v1 and v2:
        newest = max(finals, key=lambda each: each.version)
        raise Damaged(
            f"{directory} mixes the V1 and V2 manifest naming schemes, which is an error in the table format: "
            f"{len(v1)} manifests have V1 names and {len(v2)} have V2 names; the newest is "
            f"{newest.scheme.final_name(newest.version)!r}. Some readers take an old version for the latest, others "
            "refuse the table. Complete the migration to V2 names. If a commit store keeps the rows of the versions, "
            "call migrate_manifest_names (`lancekeep migrate-names`). Otherwise stop all writers, and call "
            f"`lance.dataset(uri, version={newest.version}).migrate_manifest_paths_v2()`."
        )
