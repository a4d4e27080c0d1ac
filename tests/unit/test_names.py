"""Identifiers and manifest names: valid forms, refused forms, round trips."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancekeep.domain.dataset_files import Place, data_file_name, deletion_file_name, deletion_name
from lancekeep.domain.errors import Damaged, InvalidInput
from lancekeep.domain.identifiers import LONGEST, ObjectId
from lancekeep.domain.naming import (
    U64_MAX,
    ManifestName,
    NamingScheme,
    detached_name,
    detached_version,
    final_path,
    final_versions,
)
from lancekeep.domain.table import confined, new_location, v1_location, v1_table

NAMES = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="/\\$"), min_size=1, max_size=20
).filter(lambda name: name not in (".", ".."))


BRANCH = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)


@given(st.lists(NAMES, max_size=3))
def test_identifier_round_trips_through_its_key(names: list[str]) -> None:
    object_id = ObjectId.of(names)
    assert ObjectId.from_key(object_id.key) == object_id
    assert list(object_id.names) == names


def test_string_and_list_forms_are_equal() -> None:
    assert ObjectId.of("a.b.c") == ObjectId.of(["a", "b", "c"]) == ObjectId.of("a$b$c", delimiter="$")
    assert ObjectId.of("") == ObjectId.of(None) == ObjectId.of([]) == ObjectId()
    assert ObjectId.of("a.b").parent == ObjectId.of("a")
    assert ObjectId.of("a").child("b.c").names == ("a", "b.c")


@pytest.mark.parametrize(
    "names",
    [
        ["a/b"],
        ["a\\b"],
        ["a\0b"],
        [".."],
        ["."],
        ["a$b"],
        [""],
        ["a", ""],
        ["tab\t"],
        ["\ud800"],
        ["x" * (LONGEST + 1)],
    ],
)
def test_invalid_names_are_refused_with_the_reason(names: list[str]) -> None:
    with pytest.raises(InvalidInput, match=r"name|has room for"):
        ObjectId.of(names)


def test_identifier_that_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not text"):
        ObjectId.of([1])  # type: ignore[list-item] # the point of the test
    with pytest.raises(InvalidInput, match="not text"):
        ObjectId.of([["a"]])  # type: ignore[list-item] # the point of the test


@given(st.integers(0, U64_MAX))
def test_v2_names_sort_newest_first_and_round_trip(version: int) -> None:
    name = NamingScheme.V2.final_name(version)
    assert ManifestName.parse(name) == ManifestName(version, NamingScheme.V2)
    if version < U64_MAX:
        assert NamingScheme.V2.final_name(version + 1) < name
    staged = f"{name}-7b1e5eaa-8371-4c00-912e-00784d3391fc"
    assert ManifestName.parse(staged) == ManifestName(version, NamingScheme.V2, "7b1e5eaa-8371-4c00-912e-00784d3391fc")
    assert final_path(f"t/_versions/{staged}") == final_path(f"t/_versions/{name}") == f"t/_versions/{name}"


@pytest.mark.parametrize(
    "name",
    [
        "latest_version_hint.json",
        "d18258785679941707074.manifest",
        ".tmp-1",
        "1.manifest#2",
        "-1.manifest",
        "99999999999999999999.manifest",
    ],
)
def test_other_file_names_are_not_versions(name: str) -> None:
    assert ManifestName.parse(name) is None


def test_final_versions_of_a_directory_have_one_naming_scheme() -> None:
    assert final_versions(["2.manifest", "10.manifest", "11.manifest-aa", "x.json"], "d") == (NamingScheme.V1, [2, 10])
    assert final_versions([], "d") == (None, [])
    with pytest.raises(Damaged, match="mixes the V1 and V2"):
        final_versions(["1.manifest", NamingScheme.V2.final_name(2)], "d")


@pytest.mark.parametrize(
    "location",
    ["", ".", "..", "/etc", "../x", "a/../../x", "s3://other/t", "a\\b", "a\0", "__manifest", "__manifest/x", "./"],
)
def test_location_outside_the_root_is_refused(location: str) -> None:
    with pytest.raises(InvalidInput):
        confined(location)


def test_new_locations_follow_the_specification() -> None:
    assert v1_location(ObjectId.of("t")) == "t.lance"
    assert v1_location(ObjectId.of("ns1.t")) is None
    assert new_location(ObjectId.of("t"), "a1b2c3d4") == "a1b2c3d4_t"
    assert new_location(ObjectId.of("ns1.t"), "a1b2c3d4") == "a1b2c3d4_ns1$t"
    assert v1_table("t.lance") == ObjectId.of("t")
    assert [v1_table(place) for place in (".lance", "t", "a/t.lance", "a$b.lance")] == [None] * 4


@given(st.binary(min_size=16, max_size=16))
def test_names_of_new_data_files_are_recognized(random: bytes) -> None:
    name = data_file_name(random)
    assert (name[:24], name[24:50]) == (f"{int.from_bytes(random[:3]):024b}", random[3:].hex())
    place = Place.of(f"data/{name}")
    assert place is not None
    assert place.own_name == name.removesuffix(".lance").encode()
    assert place.is_generated


@given(st.integers(1, 2**63 - 1), st.none() | st.uuids())
def test_v1_names_round_trip(version: int, suffix: UUID | None) -> None:
    name = NamingScheme.V1.final_name(version)
    staged = name if suffix is None else f"{name}-{suffix}"
    parsed = ManifestName.parse(staged)
    assert parsed == ManifestName(version, NamingScheme.V1, None if suffix is None else str(suffix))
    assert final_path(f"t/_versions/{staged}") == f"t/_versions/{name}"


@given(st.integers(2**63, U64_MAX))
def test_names_of_detached_versions_round_trip(version: int) -> None:
    name = detached_name(version)
    assert detached_version(version) is not None
    assert name == f"d{version}.manifest"
    assert ManifestName.parse(name) is None


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**40), st.integers(0, U64_MAX), st.booleans())
def test_names_of_deletion_files_are_recognized(fragment: int, version: int, number: int, bitmap: bool) -> None:
    place = Place.of(f"_deletions/{deletion_file_name(fragment, version, number, bitmap=bitmap)}")
    assert place is not None
    assert place.is_generated
    assert place.own_name == (deletion_name(number) if number >= 2**28 else None)


@given(st.uuids(), st.integers(0, 2**40), st.lists(BRANCH, min_size=1, max_size=3))
def test_names_of_transactions_and_indexes_are_recognized(uuid: UUID, version: int, branch: list[str]) -> None:
    for path in (f"_transactions/{version}-{uuid}.txn", f"_indices/{uuid}/index.idx"):
        name = "/".join(branch)
        for below, expected in ((path, ""), (f"tree/{name}/{path}", name)):
            place = Place.of(below)
            assert place is not None
            assert (place.branch, place.own_name) == (expected, str(uuid).encode())
            assert place.is_generated
