"""The steps of a change, which the control table keeps (ADR 130)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs

from lancekeep.domain.manifest_entry import ManifestEntry


@attrs.frozen
class Step:
    """One step, which changes one table or namespace.

    Attributes:
        object_id: The object after the step; before it, if it is removed.
        entry: The entry after the step; None if it is removed.
        source: The object before the step; None if it is created.
        was: The revision of the object before the step; None for an object that other software created.
        hidden: The catalog's own table that a new table is made of, or that a removed one becomes.
        moves: The object gets another directory, or leaves it.
    """

    object_id: str
    entry: ManifestEntry | None = None
    source: str | None = None
    was: str | None = None
    hidden: str = ""
    moves: bool = True


def encode(token: str, steps: Sequence[Step]) -> str:
    """Return the text of a change."""
    return json.dumps({"token": token, "steps": [_encoded(step) for step in steps]}, separators=(",", ":"))


def decode(text: str) -> tuple[str, list[Step]]:
    """Return the token and the steps of a change.

    Raises:
        ValueError: The text is no change.
    """
    try:
        change = json.loads(text)
        return str(change["token"]), [_decoded(step) for step in change["steps"]]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _encoded(step: Step) -> dict[str, Any]:
    values = attrs.asdict(step, filter=lambda _, value: value not in (None, "", True), recurse=False)
    if step.entry is not None:
        values["entry"] = [step.entry.object_type, step.entry.location, step.entry.metadata]
    return values


def _decoded(values: dict[str, Any]) -> Step:
    entry = values.pop("entry", None)
    return Step(**values, entry=None if entry is None else ManifestEntry(values["object_id"], *entry))
