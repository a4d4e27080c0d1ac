"""The JSON files of a table: tags, branches and the version hint."""

from __future__ import annotations

import json

from lancekeep.domain.dataset_files import Reference
from lancekeep.domain.errors import Damaged
from lancekeep.domain.naming import U64_MAX


def parse_reference(content: bytes, name: str) -> Reference:
    """Decode a tag or a branch, a file below ``_refs/``.

    Raises:
        Damaged: the content is neither. The message names the file ``name``.
    """
    try:
        found = json.loads(content)
        branch, version = (
            (found["parentBranch"], found["parentVersion"])
            if "parentVersion" in found
            else (found["branch"], found["version"])
        )
        if not isinstance(version, int) or not isinstance(branch, str | None):
            raise ValueError("its branch is not text, or its version is not a number")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged(f"{name} is not a tag or branch: {error!r}") from error
    return Reference("" if branch in (None, "main") else branch, version)


def hinted_version(hint: bytes) -> int:
    """Return the version in a version hint, or 0 if the hint cannot be decoded.

    The hint is the content of ``latest_version_hint.json``.
    """
    try:
        version = json.loads(hint)["version"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return 0
    return version if isinstance(version, int) and 0 < version < U64_MAX else 0


def version_hint(version: int) -> bytes:
    """Return the content of a version hint."""
    return json.dumps({"version": version}, separators=(",", ":")).encode()
