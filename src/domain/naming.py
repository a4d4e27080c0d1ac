"""Names of manifests below ``_versions/`` (table format, "Manifest Naming Schemes" and "External Manifest Store").

=========================================  ==============================================================
name                                       meaning
=========================================  ==============================================================
``{version}.manifest``                     V1, final
``{u64::MAX - version:020}.manifest``      V2, final: names sort from the newest version to the oldest
either, followed by ``-{uuid}``            staged: written, and not a version of the table (yet)
=========================================  ==============================================================

Everything else in the directory (version hints, detached manifests, temporary files) is not a version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache

import attrs

from lancekeep.domain.errors import Damaged

U64_MAX = 2**64 - 1
_NAME = re.compile(r"(?P<number>[0-9]{1,20})\.manifest(?:-(?P<uuid>[0-9A-Za-z-]+))?")
_UUID = re.compile("[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


class NamingScheme(Enum):
    """How a version number becomes the name of its manifest. One table uses one scheme."""

    V1 = "V1"
    V2 = "V2"

    def final_name(self, version: int) -> str:
        """The name of the manifest of ``version`` once it is committed."""
        if self is NamingScheme.V1:
            return f"{version}.manifest"
        return f"{U64_MAX - version:020}.manifest"


@attrs.frozen
class ManifestName:
    """A manifest's file name, understood.

    ``uuid`` is None for a final manifest, and what follows ``.manifest-`` for a staged one.
    """

    version: int
    scheme: NamingScheme
    uuid: str | None = None

    @staticmethod
    @lru_cache(4096)  # every read of a row parses the same few names
    def parse(name: str) -> ManifestName | None:
        """Understand ``name`` (without its directory); None where it is not the name of a version's manifest.

        Twenty digits mean V2, as the native engine decides it: no V1 table gets to a version that long.
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
        """Whether a staged manifest has the name that writers generate, and not a name that a user gave a copy."""
        return self.uuid is not None and _UUID.fullmatch(self.uuid) is not None


def final_path(path: str) -> str:
    """The key under which a staged manifest will lie once it is committed; a final key is returned as it is."""
    return path.rpartition(".manifest")[0] + ".manifest"


def final_versions(names: Iterable[str], directory: str) -> tuple[NamingScheme | None, list[int]]:
    """The naming scheme of a ``_versions`` directory and the versions it holds, oldest first.

    Staged manifests and unknown names are passed over.

    Raises:
        Damaged: both schemes occur. "It is an error for there to be a mixture of these two naming schemes."
    """
    finals = [parsed for parsed in map(ManifestName.parse, names) if parsed is not None and not parsed.is_staged]
    schemes = {parsed.scheme for parsed in finals}
    if len(schemes) > 1:
        v1, v2 = ([each for each in finals if each.scheme is scheme] for scheme in NamingScheme)
        fewer, more = sorted((v1, v2), key=len)
        raise Damaged(
            f"{directory} mixes the V1 and V2 manifest naming schemes, which is an error in the table format: "
            f"{fewer[0].scheme.final_name(fewer[0].version)!r} and {len(fewer) - 1} others are named by "
            f"{fewer[0].scheme.value}, {len(more)} by {more[0].scheme.value}. Some readers take an old version for the "
            "latest, others refuse the table. Rename the manifests of one scheme to the other, or move them away."
        )
    return next(iter(schemes), None), sorted(parsed.version for parsed in finals)
