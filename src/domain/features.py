"""The feature flags of a manifest (table format, "Manifest").

A reader that does not know a set flag must not read the table, and a writer must not write it. The writer of Lance 14
sets flags that the text of the specification does not list; they are known here by name.
"""

from __future__ import annotations

from enum import IntFlag
from typing import Final

from lancekeep.domain.errors import Unsupported


class Feature(IntFlag):
    """What a table requires of its readers or writers."""

    DELETION_FILES = 1 << 0
    STABLE_ROW_IDS = 1 << 1
    V2_FORMAT = 1 << 2
    TABLE_CONFIG = 1 << 3
    BASE_PATHS = 1 << 4
    NO_TRANSACTION_FILES = 1 << 5
    DATA_OVERLAY_FILES = 1 << 6
    MEM_WAL_OR_COVERING_INDEXES = 1 << 7  # prereleases of Lance 11 used the bit for MemWAL, later ones for indexes
    MIXED_FILE_VERSIONS = 1 << 8
    STABLE_FIELD_IDS = 1 << 9
    FRAGMENT_REUSE_INDEX = 1 << 10


KNOWN: Final = sum(Feature)

FENCE: Final = 1 << 62
"""A writer flag that no release of Lance knows, so no writer follows a version that has it (ADR 71)."""


def feature_names(flags: int) -> list[str]:
    """Return the names of the set flags; an unknown flag is named by its bit."""
    names = [feature.name.lower() for feature in Feature if feature.name and flags & feature]
    if flags & FENCE:
        names.append("fence")
    unknown = flags & ~(KNOWN | FENCE)
    return [*names, *(f"unknown flag {1 << bit}" for bit in range(flags.bit_length()) if unknown & 1 << bit)]


def refuse_unknown_features(flags: int, name: str) -> None:
    """Refuse a table whose flags are not all known.

    Args:
        flags: the reader or the writer flags of a manifest.
        name: the manifest, for the message.

    Raises:
        Unsupported: a set flag is unknown.
    """
    unknown = flags & ~KNOWN
    if unknown:
        raise Unsupported(
            f"{name} requires {', '.join(feature_names(unknown))}; this release of Lancekeep knows the flags up to "
            f"{max(Feature).value}. Read the table with a newer release."
        )
