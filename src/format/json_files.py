"""The JSON files of a table: tags, branches and the version hint."""

from __future__ import annotations

import json
import re

from lancekeep.domain.dataset_files import Reference
from lancekeep.domain.errors import Damaged
from lancekeep.domain.naming import U64_MAX

_TIME = re.compile(
    r"\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|[12]\d))"
    r"[Tt ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[+-][01]\d:[0-5]\d)",
    re.ASCII,
)


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
        if "parentVersion" not in found and not isinstance(found.get("manifestSize"), int):
            raise ValueError("it does not state the size of the manifest")
        for member in ("createdAt", "updatedAt"):
            if found.get(member) is not None:
                _check_time(found[member])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged(f"{name} is not a tag or branch: {error!r}") from error
    return Reference("" if branch in (None, "main") else branch, version)


def _check_time(text: str) -> None:
    """Raise `ValueError` for a time that the engine cannot read."""
    if not _TIME.fullmatch(text):
        raise ValueError(f"{text!r} is not a time")


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
