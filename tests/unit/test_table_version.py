"""Manifests and transactions as values: every field in both directions."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from format_values import OPERATIONS, any_value
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lancekeep.domain.errors import Damaged, Unsupported
from lancekeep.domain.features import KNOWN, Feature, feature_names
from lancekeep.domain.manifest import Fragment, IndexMetadata, IndexSection, Manifest
from lancekeep.domain.operations import Append, Operation, Transaction, UpdateConfig, UpdateMap
from lancekeep.format import values
from lancekeep.format.messages import MESSAGES
from lancekeep.format.table_version import TableVersion, parse_transaction, serialize_transaction
from lancekeep.format.values import operation_name

FEW = settings(
    max_examples=40,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
POSITIONS: dict[str, Any] = {"index_section": None, "transaction_section": None, "transaction_section_21": None}


def known_flags(manifest: Manifest) -> Manifest:
    return attrs.evolve(manifest, reader_feature_flags=manifest.reader_feature_flags & KNOWN, version=7)


VERSIONS = st.builds(
    TableVersion,
    any_value(Manifest).map(known_flags),
    st.none() | any_value(IndexSection),
    st.none() | any_value(Transaction),
)


@FEW
@given(VERSIONS)
def test_manifest_file_survives_a_round_trip(version: TableVersion) -> None:
    content = version.serialize()
    found = TableVersion.parse(content, "m")
    assert attrs.evolve(found.manifest, **POSITIONS) == attrs.evolve(version.manifest, **POSITIONS)
    assert (found.index_section, found.transaction) == (version.index_section, version.transaction)
    assert found.serialize() == content


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_operation_survives_a_round_trip_with_all_its_fields(kind: type[Operation]) -> None:
    @settings(FEW, max_examples=5)
    @given(any_value(kind))
    def check(operation: Operation) -> None:
        transaction = Transaction(3, "u", operation=operation)
        assert parse_transaction(serialize_transaction(transaction), "t") == transaction

    check()


def test_every_operation_of_the_message_has_a_class() -> None:
    fields = [field.name for field in MESSAGES["Transaction"].DESCRIPTOR.fields if field.number >= 100]
    assert sorted(map(operation_name, OPERATIONS)) == sorted(fields)


def test_every_field_of_every_message_has_an_attribute() -> None:
    for name, kind in values.CLASSES.items():
        if kind is not Transaction:
            attributes = {attribute.name for attribute in attrs.fields(kind)} - {"others"}
            assert attributes == set(MESSAGES[name].DESCRIPTOR.fields_by_name), name


def test_unknown_operation_is_kept_and_has_no_value() -> None:
    content = b"\x08\x03" + bytes([0x8A, 0x19, 1]) + b"x"  # field 401
    transaction = parse_transaction(content, "t")
    assert (transaction.read_version, transaction.operation) == (3, None)
    assert serialize_transaction(transaction) == content


def test_two_operations_are_damaged() -> None:
    both = serialize_transaction(Transaction(operation=Append())) + serialize_transaction(
        Transaction(operation=UpdateConfig())
    )
    with pytest.raises(Damaged, match=r"^t is not a transaction .* at 0: .* 2 operations, append and update_config"):
        parse_transaction(both, "t")


def test_update_map_tells_a_removed_key_from_an_empty_value() -> None:
    operation = UpdateConfig(config_updates=UpdateMap({"removed": None, "empty": ""}, replace=True))
    transaction = Transaction(operation=operation)
    assert parse_transaction(serialize_transaction(transaction), "t") == transaction


def test_fragments_become_values_when_they_are_read() -> None:
    fragments = [Fragment(id=number, physical_rows=3) for number in range(5)]
    found = TableVersion.parse(
        TableVersion(Manifest(fragments=fragments, version=1)).serialize(), "m"
    ).manifest.fragments
    assert (len(found), found[2], list(found[3:]), repr(found)) == (
        5, fragments[2], fragments[3:], "<5 fragments of m>",
    )  # fmt: skip
    assert found == fragments
    assert found != fragments[1:]


def test_unknown_reader_feature_is_refused_by_name() -> None:
    content = TableVersion(Manifest(version=1, reader_feature_flags=2 | 1 << 40)).serialize()
    with pytest.raises(Unsupported, match=f"^m requires unknown flag {1 << 40}; .* up to {max(Feature).value}"):
        TableVersion.parse(content, "m")
    assert feature_names(1 | 256) == ["deletion_files", "mixed_file_versions"]


def test_damaged_section_is_named_with_its_position() -> None:
    index = IndexMetadata(uuid="00000000-0000-0000-0000-000000000001")
    content = TableVersion(Manifest(version=1), IndexSection((index,)), Transaction(operation=Append())).serialize()
    with pytest.raises(Damaged, match=r"^t\.manifest is not a manifest of a Lance table: the message at 0: .*16 bytes"):
        TableVersion.parse(
            content.replace(b"\x0a\x10" + bytes(15) + b"\x01", b"\x12\x10" + bytes(15) + b"\x01"), "t.manifest"
        )
