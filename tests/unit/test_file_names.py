"""The names of the files that several versions need are those of each version alone."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from lancekeep.domain.errors import Damaged
from lancekeep.format.file_references import FileNames, names_in


def manifest(fragments: bytes, indexes: bytes = b"") -> bytes:
    """Return a manifest file with the bytes in its fragments, and in its section of indexes."""
    section = len(indexes).to_bytes(4, "little") + indexes if indexes else b""
    message = b"\x30\x00" * bool(indexes) + b"\x12" + varint(len(fragments)) + fragments
    footer = len(section).to_bytes(8, "little") + b"\x00\x00\x02\x00LANC"
    return section + len(message).to_bytes(4, "little") + message + footer


def varint(number: int) -> bytes:
    parts = [number >> at & 0x7F for at in range(0, max(1, number.bit_length()), 7)]
    return bytes([*(part | 0x80 for part in parts[:-1]), parts[-1]])


def entry(chance: random.Random) -> bytes:
    """Return bytes with the name of a file, or bytes that look like the beginning of a name."""
    random_name = "".join(chance.choices("01", k=24)) + f"{chance.getrandbits(104):026x}"
    uuid = UUID(int=chance.getrandbits(128))
    found = chance.choice(
        [
            random_name.encode() + b".lance",
            str(uuid).encode() + b".lance",
            b"\x0a\x10" + uuid.bytes,
            b"\x18" + varint(chance.getrandbits(64) | 1 << 50),
            bytes(chance.choices(b"01\x0a\x10\x18\xff", k=chance.randint(1, 60))),
        ]
    )
    return found[: chance.choice((len(found), chance.randint(0, len(found))))]


def changed(content: bytes, chance: random.Random) -> bytes:
    """Return the content of another version: bytes are inserted, left out or replaced anywhere, in a name, too."""
    begin = chance.choice((len(content), chance.randint(0, len(content))))
    end = chance.choice((begin, min(len(content), begin + chance.randint(0, 60)), len(content)))
    return content[:begin] + entry(chance) * chance.randint(0, 2) + content[end:]


@pytest.mark.parametrize("seed", range(30))
def test_names_of_versions_are_those_of_each_version(seed: int) -> None:
    chance = random.Random(seed)
    fragments, indexes = b"".join(entry(chance) for _ in range(200)), entry(chance)
    together, alone = FileNames(), set[bytes]()
    for _ in range(60):
        content = manifest(fragments, indexes)
        together.add(content, "m")
        alone |= names_in(content, "m")
        assert together.names == alone
        fragments, indexes = changed(fragments, chance), chance.choice((b"", indexes, changed(indexes, chance)))


def test_a_damaged_version_adds_nothing_and_later_versions_are_complete() -> None:
    name = b"1" * 24 + b"a" * 26
    found = FileNames()
    with pytest.raises(Damaged, match="broken"):
        found.add(manifest(name)[:-1], "broken")
    assert found.names == set()
    found.add(manifest(name), "m")
    found.add(manifest(name), "m")
    assert found.names == {name}
