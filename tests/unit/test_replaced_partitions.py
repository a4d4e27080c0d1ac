"""A replacement of all partitions as one change."""

from __future__ import annotations

from lancekeep.domain.catalog import Change, Put, Remove, SetProperties
from lancekeep.domain.manifest_entry import NAMESPACE, ManifestEntry
from lancekeep.domain.namespace import replacing


def test_each_entry_and_property_changes_once() -> None:
    entered = Put(ManifestEntry("v1", NAMESPACE))
    removed: list[Change] = [Remove("v1$a"), Remove("v1"), SetProperties({"schema": None, "old": None})]
    created: list[Change] = [SetProperties({"schema": "new"}), entered]
    properties = SetProperties({"schema": "new", "old": None})
    assert replacing(removed, created) == [Remove("v1$a"), entered, properties]
