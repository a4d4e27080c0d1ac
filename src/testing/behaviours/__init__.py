"""The behaviours, each with its sentence of the specification.

The sentences are from the directory namespace specification ("V2"), the namespace specification ("Concepts") and the
OpenAPI document, where a schema or an operation names them. If a request must fail, a behaviour checks the class of the
error.
"""

from __future__ import annotations

from collections.abc import Sequence

from lancekeep.testing.behaviours import (
    commits,
    data,
    indexes,
    listings,
    namespaces,
    races,
    references,
    registration,
    schema,
    tables,
    views,
)
from lancekeep.testing.behaviours.behaviour import (
    Behaviour,
    Bench,
    Capability,
    Contents,
    Departure,
    Door,
    NotOffered,
    Open,
    Outcome,
    Result,
    Storage,
    Verdict,
    run_all,
)

__all__ = (
    "BEHAVIOURS",
    "Behaviour",
    "Bench",
    "Capability",
    "Contents",
    "Departure",
    "Door",
    "NotOffered",
    "Open",
    "Outcome",
    "Result",
    "Storage",
    "Verdict",
    "run_all",
)

BEHAVIOURS: Sequence[Behaviour] = (
    *namespaces.BEHAVIOURS,
    *tables.BEHAVIOURS,
    *registration.BEHAVIOURS,
    *listings.BEHAVIOURS,
    *data.BEHAVIOURS,
    *references.BEHAVIOURS,
    *indexes.BEHAVIOURS,
    *schema.BEHAVIOURS,
    *commits.BEHAVIOURS,
    *views.BEHAVIOURS,
    *races.BEHAVIOURS,
)
