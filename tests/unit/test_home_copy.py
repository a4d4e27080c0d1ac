"""Which unfinished copies a home of a catalog may take over or give up."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lancekeep.domain.errors import Refused
from lancekeep.domain.home_copy import (
    COPY_PROPERTY,
    MOVED_PROPERTY,
    MOVING_PROPERTY,
    Copying,
    Ends,
    Stage,
    begun,
    stage_of,
    unfenced,
    withdrawn,
)
from lancekeep.domain.identity import IDENTITY_PROPERTY, Identity

ENDS = Ends("postgresql://second", "postgresql://stuck")
OWN = {IDENTITY_PROPERTY: Identity("a", "s3://bucket/lake").text()}
COPY = {COPY_PROPERTY: Copying("s3://bucket/lake", "1").text()}


def view(properties: Mapping[str, str]) -> Any:
    return SimpleNamespace(properties=properties, version=3, guarantees=SimpleNamespace(properties=True))


def test_present_home_takes_over_what_was_copied_from_a_former_home() -> None:
    target = {**OWN, **COPY}
    assert stage_of(ENDS, OWN, target, occupied=True) is Stage.LEFT
    [change] = begun(view(target), ENDS, "2", OWN, fenced=False)[0]
    assert change.properties == {**OWN, COPY_PROPERTY: Copying(ENDS.source, "2").text()}  # type: ignore[union-attr]
    [change] = withdrawn(view(target), ENDS, OWN)[0]
    assert change.properties == {COPY_PROPERTY: None, MOVED_PROPERTY: ENDS.source}  # type: ignore[union-attr]


@pytest.mark.parametrize("identity", [None, Identity("b", "s3://bucket/lake"), Identity("a", "s3://bucket/copy")])
def test_copy_of_another_catalog_stays(identity: Identity | None) -> None:
    target = COPY if identity is None else {**COPY, IDENTITY_PROPERTY: identity.text()}
    with pytest.raises(Refused, match="is an unfinished copy of s3://bucket/lake"):
        stage_of(ENDS, OWN, target, occupied=True)
    with pytest.raises(Refused, match="has become a copy of s3://bucket/lake"):
        begun(view(target), ENDS, "2", OWN, fenced=False)
    assert withdrawn(view(target), ENDS, OWN)[0] == []


def test_source_that_is_fenced_takes_no_copy_of_another_home_over() -> None:
    with pytest.raises(Refused, match="is an unfinished copy of s3://bucket/lake"):
        stage_of(ENDS, {**OWN, MOVED_PROPERTY: ENDS.target}, {**OWN, **COPY}, occupied=True)


@pytest.mark.parametrize("moved_to", [None, "postgresql://third"])
def test_fence_towards_another_home_stays(moved_to: str | None) -> None:
    left = OWN if moved_to is None else {**OWN, MOVED_PROPERTY: moved_to}
    assert unfenced(view(left), ENDS)[0] == []
    [change] = unfenced(view({**OWN, MOVED_PROPERTY: ENDS.target}), ENDS)[0]
    assert change.properties == {MOVED_PROPERTY: None, MOVING_PROPERTY: None}  # type: ignore[union-attr]


def test_former_home_neither_continues_nor_gives_up() -> None:
    left = {**OWN, MOVED_PROPERTY: "postgresql://third"}
    for target in ({**OWN, **COPY}, {**OWN, COPY_PROPERTY: Copying(ENDS.source, "1").text()}):
        with pytest.raises(Refused, match="moved to postgresql://third"):
            stage_of(ENDS, left, target, occupied=True)
