"""The contract of `ObjectStore`.

Subclass the class for the guarantees of the adapter: `ObjectStoreContract`, `CreatingContract` (``atomic_create``) or
`CopyingContract` (``atomic_copy``). Provide the fixtures `store` and `probe`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from multiprocessing.synchronize import Barrier as ProcessBarrier

import pytest

from lancekeep.domain.errors import InvalidInput, LancekeepError, ObjectNotFound, UnsafeStore
from lancekeep.ports.object_store import PIECE, ObjectStore, Tail
from lancekeep.testing.concurrency import race
from lancekeep.testing.object_pieces import PiecesContract, WholePiecesContract
from lancekeep.testing.object_pieces import Probe as Probe

STRANGE_NAMES = (
    "with space",
    "50%",
    "100%25",
    "a#b",
    "a?b=c&d",
    "straße",
    "日本/語",
    "e\u0301",
    "😀",
    "a$b",
    "a+b",
    "[x]{y}~",
    'it\'s "so"',
    "back\\slash",
    "tab\there",
    "-",
    "*",
)
BAD_KEYS = ("", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\0b")


def claim_each(store: ObjectStore, keys: list[str], me: int, barrier: ProcessBarrier) -> list[bool]:
    """Race to create each key, and return which this process created."""
    won = []
    for key in keys:
        barrier.wait()
        won.append(store.put_if_absent(key, b"%d" % me))
    return won


class ObjectStoreContract(PiecesContract):
    """The contract of every object store."""

    # -- one object ---------------------------------------------------------------------------------------------

    def test_tail_is_the_end_of_an_object(self, store: ObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "a", b"0123456789")
        probe.write(probe.home + "empty", b"")
        assert store.tail(probe.home + "a", 3) == Tail(b"789", 10)
        assert store.tail(probe.home + "a", 10) == store.tail(probe.home + "a", 99) == Tail(b"0123456789", 10)
        assert store.tail(probe.home + "empty", 3) == Tail(b"", 0)
        assert store.tail(probe.home + "absent", 3) is None

    def test_put_stores_complete_object(self, store: ObjectStore, probe: Probe) -> None:
        key = probe.home + "t.lance/_versions/1.manifest"
        store.put(key, b"one")
        assert probe.read(key) == b"one"
        assert store.get(key) == b"one"
        info = store.head(key)
        assert info is not None
        assert (info.key, info.size) == (key, 3)

    def test_prove_leaves_no_object(self, store: ObjectStore, probe: Probe) -> None:
        for _ in range(2):
            store.prove()
        assert probe.stored() == []

    def test_put_replaces_and_is_idempotent(self, store: ObjectStore, probe: Probe) -> None:
        key = probe.home + "a"
        for content in (b"first, and longer", b"second", b"second"):
            store.put(key, content)
        assert probe.read(key) == b"second"
        assert probe.stored() == [key]

    def test_foreign_writes_are_seen(self, store: ObjectStore, probe: Probe) -> None:
        key = probe.home + "d/a"
        assert store.head(key) is None
        assert list(store.list(probe.home)) == []
        probe.write(key, b"theirs")
        assert store.get(key) == b"theirs"
        assert store.head(key) is not None
        assert [info.key for info in store.list(probe.home)] == [key]
        probe.remove(key)
        assert store.head(key) is None
        assert list(store.list(probe.home)) == []

    def test_empty_object_exists(self, store: ObjectStore, probe: Probe) -> None:
        key = probe.home + "empty"
        store.put(key, b"")
        assert store.get(key) == b""
        info = store.head(key)
        assert info is not None
        assert info.size == 0

    def test_large_content_is_returned(self, store: ObjectStore, probe: Probe) -> None:
        key, content = probe.home + "large", bytes(range(256)) * (8 * 2**20 // 256)
        store.put(key, content)
        assert probe.read(key) == content
        assert store.get(key) == content

    @pytest.mark.parametrize("name", STRANGE_NAMES)
    def test_unusual_names_have_no_special_meaning(self, store: ObjectStore, probe: Probe, name: str) -> None:
        key = probe.home + f"lake/{name}/{name}.bin"
        store.put(key, b"content")
        assert probe.stored() == [key]
        assert store.get(key) == b"content"
        assert [info.key for info in store.list(probe.home)] == [key]
        assert [info.key for info in store.list(key[:-5])] == [key]
        store.delete(key)
        assert probe.stored() == []

    def test_missing_object_is_not_found(self, store: ObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "d/a", b"a")
        for key in (probe.home + "b", probe.home + "d", probe.home + "no/such/a", probe.home + "d/a/b"):
            assert store.head(key) is None, key
            with pytest.raises(ObjectNotFound) as caught:
                store.get(key)
            assert key in str(caught.value)

    def test_delete_is_idempotent_and_keeps_other_objects(self, store: ObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "d/a", b"a")
        probe.write(probe.home + "d/ab", b"ab")
        for key in ("d/a", "d/a", "no/such/a", "d"):
            store.delete(probe.home + key)
        assert probe.stored() == [probe.home + "d/ab"]

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_invalid_key_is_refused(self, store: ObjectStore, probe: Probe, key: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.get(key),
            lambda: store.put(key, b""),
            lambda: store.head(key),
            lambda: store.tail(key, 1),
            lambda: store.piece(key, 0, 1),
            lambda: store.put_pieces(key, 0, ()),
            lambda: store.put_pieces(key, PIECE + 1, (bytes(PIECE), b"x")),
            lambda: store.delete(key),
            lambda: store.copy(key, probe.home + "target"),
            lambda: store.copy(probe.home + "source", key),
        ]
        if store.guarantees.atomic_create:
            calls.append(lambda: store.put_if_absent(key, b""))
        if store.guarantees.atomic_copy:
            probe.write(probe.home + "source", b"")
            calls.append(lambda: store.copy_if_absent(probe.home + "source", key))
            calls.append(lambda: store.copy_if_absent(key, probe.home + "target"))
        before = probe.stored()
        for call in calls:
            with pytest.raises(InvalidInput):
                call()
        assert probe.stored() == before

    def test_complete_object_is_not_unfinished(self, store: ObjectStore, probe: Probe) -> None:
        store.put(probe.home + "a/b", b"whole")
        assert list(store.unfinished(probe.home)) == []
        assert list(store.unfinished(probe.home + "no/such/")) == []
        with pytest.raises(InvalidInput):
            list(store.unfinished(probe.home + "a/../"))

    # -- listing ------------------------------------------------------------------------------------------------

    def test_list_is_recursive_and_in_byte_order(self, store: ObjectStore, probe: Probe) -> None:
        names = ["a!/x", "a-b", "a.b/c", "a/b.c/d", "a/b/c", "a0", "b/Z", "b/a", "b/é", "b/日", "b/😀", "z"]
        for name in reversed(names):
            probe.write(probe.home + name, name.encode())
        expected = sorted((probe.home + name for name in names), key=str.encode)
        assert [(info.key, info.size) for info in store.list(probe.home)] == [
            (key, len(key.removeprefix(probe.home).encode())) for key in expected
        ]

    @pytest.mark.parametrize(
        ("prefix", "expected"),
        [
            ("t", ["t.lance/_versions/1.manifest", "t.lance/data/a", "t2.lance/x", "tt"]),
            ("t.lance", ["t.lance/_versions/1.manifest", "t.lance/data/a"]),
            ("t.lance/", ["t.lance/_versions/1.manifest", "t.lance/data/a"]),
            ("t.lance/d", ["t.lance/data/a"]),
            ("t.lance/data/a", ["t.lance/data/a"]),
            ("tt/", []),
            ("u", []),
            ("no/such/directory/", []),
            ("no/such/name", []),
        ],
    )
    def test_prefix_may_end_anywhere(self, store: ObjectStore, probe: Probe, prefix: str, expected: list[str]) -> None:
        for name in ("s", "t.lance/_versions/1.manifest", "t.lance/data/a", "t2.lance/x", "tt"):
            probe.write(probe.home + name, b"")
        listed = [info.key.removeprefix(probe.home) for info in store.list(probe.home + prefix)]
        assert listed == expected

    @pytest.mark.parametrize("after", ["a", "a/b", "a/b/c", "a/b/d", "a/b/z", "a/c", "a0", "b/é", "b/😀", "z", "é"])
    def test_listing_begins_after_a_key(self, store: ObjectStore, probe: Probe, after: str) -> None:
        names = ["a-b", "a/b/c", "a/b/d/e", "a/b/f", "a0", "b/Z", "b/é", "b/日", "b/😀", "z"]
        for name in names:
            probe.write(probe.home + name, b"")
        listed = [info.key.removeprefix(probe.home) for info in store.list(probe.home, after=probe.home + after)]
        assert listed == [name for name in names if name.encode() > after.encode()]

    @pytest.mark.parametrize("prefix", ["/", "/a", "a//b", "../a", "a/../b", "a\0", "a/\0"])
    def test_invalid_prefix_is_refused(self, store: ObjectStore, prefix: str) -> None:
        with pytest.raises(InvalidInput):
            list(store.list(prefix))

    def test_directories_are_sorted_like_their_keys(self, store: ObjectStore, probe: Probe) -> None:
        for name in ("a/b/c", "a!/x", "a-b/x", "a.b/x", "a0/x", "é/x", "日/x", "😀/x", "file", "b.lance/data/1", "b/x"):
            probe.write(probe.home + name, b"")
        expected = ["a!", "a-b", "a.b", "a", "a0", "b.lance", "b", "é", "日", "😀"]
        assert list(store.directories(probe.home)) == expected
        assert list(store.directories(f"{probe.home}a/")) == ["b"]
        assert list(store.directories(f"{probe.home}a/b/")) == []
        assert list(store.directories(f"{probe.home}file/")) == []
        assert list(store.directories(f"{probe.home}no/such/")) == []
        assert probe.home.partition("/")[0] in list(store.directories(""))

    @pytest.mark.parametrize("name", [name for name in STRANGE_NAMES if "/" not in name])
    def test_unusual_directory_names_have_no_special_meaning(self, store: ObjectStore, probe: Probe, name: str) -> None:
        probe.write(f"{probe.home}{name}/{name}/x", b"")
        assert list(store.directories(probe.home)) == [name]
        assert list(store.directories(f"{probe.home}{name}/")) == [name]

    @pytest.mark.parametrize("prefix", ["/", "a", "lake/a", "/a/", "a//", "a//b/", "../", "a/../", "a\0/"])
    def test_invalid_directory_is_refused(self, store: ObjectStore, prefix: str) -> None:
        with pytest.raises(InvalidInput):
            list(store.directories(prefix))

    # -- copying and pruning ------------------------------------------------------------------------------------

    def test_copy_replaces_and_is_idempotent(self, store: ObjectStore, probe: Probe) -> None:
        source, target = probe.home + "source", probe.home + "new/dir/target"
        probe.write(source, b"one")
        store.copy(source, target)
        probe.write(probe.home + "other", b"another")
        for _ in range(2):
            store.copy(probe.home + "other", target)
        assert probe.read(target) == b"another"
        store.put(target, b"changed")
        assert (probe.read(source), probe.read(probe.home + "other")) == (b"one", b"another")
        assert probe.stored() == [target, probe.home + "other", source]

    def test_copy_onto_itself_changes_nothing(self, store: ObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "a", b"content")
        store.copy(probe.home + "a", probe.home + "a")
        assert probe.read(probe.home + "a") == b"content"
        assert probe.stored() == [probe.home + "a"]

    def test_copy_of_missing_object_is_refused(self, store: ObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "d/a", b"")
        probe.write(probe.home + "target", b"kept")
        for source in ("no", "d", "no/such/a"):
            for target in ("target", source):
                with pytest.raises(ObjectNotFound) as caught:
                    store.copy(probe.home + source, probe.home + target)
                assert probe.home + source in str(caught.value)
        assert probe.read(probe.home + "target") == b"kept"
        assert probe.stored() == [probe.home + "d/a", probe.home + "target"]

    def test_large_content_is_copied(self, store: ObjectStore, probe: Probe) -> None:
        content = bytes(range(256)) * (9 * 2**20 // 256)
        probe.write(probe.home + "source", content)
        store.copy(probe.home + "source", probe.home + "target")
        assert probe.read(probe.home + "target") == content

    def test_prune_keeps_every_object(self, store: ObjectStore, probe: Probe) -> None:
        keys = [probe.home + name for name in ("d/a", "d/e/b", "d/f/g/c")]
        for key in keys:
            probe.write(key, b"")
        probe.write(probe.home + "d/gone/x", b"")
        store.delete(probe.home + "d/gone/x")
        store.prune(probe.home + "d")
        assert probe.stored() == keys
        assert sorted(store.directories(probe.home + "d/")) == ["e", "f"]
        for key in keys:
            store.delete(key)
        for _ in range(2):
            store.prune(probe.home + "d")
        assert list(store.directories(probe.home)) == []

    def test_concurrent_prune_fails_no_write(self, store: ObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "source", b"content")

        def use(me: int) -> int:
            written = 0
            for number in range(40):
                key = f"{probe.home}d/e/{me}/{number}"
                content = b"content"
                if me == 0 and store.guarantees.atomic_create:
                    content = b"" if number % 2 else content
                    assert store.put_if_absent(key, content)
                elif me == 1 and store.guarantees.atomic_copy:
                    assert store.copy_if_absent(probe.home + "source", key)
                elif me == 2:
                    store.copy(probe.home + "source", key)
                else:
                    store.put(key, content)
                written += store.get(key) == content
                store.delete(key)
                store.prune(probe.home + "d")
            return written

        assert race(4, use) == [40] * 4

    def test_closed_store_connects_again(self, store: ObjectStore, probe: Probe) -> None:
        store.put(probe.home + "a", b"1")
        store.close()
        store.close()
        assert store.get(probe.home + "a") == b"1"

    def test_passes_link_is_false_without_links(self, store: ObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "d/e/a", b"")
        for directory in ("d", "d/e", "no/such"):
            assert not store.passes_link(probe.home + directory, probe.home[:-1])
            assert not store.passes_link(probe.home + directory, "")

    # -- errors and the rest ------------------------------------------------------------------------------------

    def test_listing_survives_concurrent_deletes(self, store: ObjectStore, probe: Probe) -> None:
        names = [f"{directory}/{number}" for directory in "abc" for number in range(3)]
        for name in names:
            probe.write(probe.home + name, b"")
        listing = store.list(probe.home)
        first = next(listing)
        for name in names[1:-1]:
            store.delete(probe.home + name)
        rest = [info.key for info in listing]
        assert first.key == probe.home + names[0]
        assert rest[-1] == probe.home + names[-1]
        assert set(rest) <= {probe.home + name for name in names[1:]}

    def test_operation_without_guarantee_is_refused(self, store: ObjectStore, probe: Probe) -> None:
        assert store.guarantees.atomic_create == isinstance(self, CreatingContract)
        assert store.guarantees.atomic_copy == isinstance(self, CopyingContract)
        probe.write(probe.home + "source", b"")
        refused: list[Callable[[], bool]] = []
        if not store.guarantees.atomic_create:
            refused.append(lambda: store.put_if_absent(probe.home + "target", b""))
        if not store.guarantees.atomic_copy:
            refused.append(lambda: store.copy_if_absent(probe.home + "source", probe.home + "target"))
        for call in refused:
            with pytest.raises(UnsafeStore, match="target"):
                call()
        assert probe.stored() == [probe.home + "source"]

    # -- errors and the rest ------------------------------------------------------------------------------------

    def test_errors_pickle(self, store: ObjectStore, probe: Probe) -> None:
        for key in (probe.home + "no", "../no"):
            with pytest.raises(LancekeepError) as caught:
                store.get(key)
            copy = pickle.loads(pickle.dumps(caught.value))
            assert (type(copy), str(copy)) == (type(caught.value), str(caught.value))

    def test_root_uri_ends_in_slash(self, store: ObjectStore) -> None:
        assert store.root_uri.endswith("/")

    def test_threads_share_store(self, store: ObjectStore, probe: Probe) -> None:
        def use(me: int) -> list[bytes]:
            seen = []
            for number in range(10):
                key = probe.home + f"{me}/{number}"
                store.put(key, key.encode())
                seen.append(store.get(key))
                store.delete(key)
            return seen

        assert race(4, use) == [[f"{probe.home}{me}/{n}".encode() for n in range(10)] for me in range(4)]
        assert probe.stored() == []


class CreatingContract(WholePiecesContract, ObjectStoreContract):
    """The contract of stores that guarantee ``atomic_create``."""

    def test_put_if_absent_creates_once(self, store: ObjectStore, probe: Probe) -> None:
        key = probe.home + "d/a"
        assert store.put_if_absent(key, b"mine") is True
        # A writer that lost the reply retries. It receives False and compares the content.
        assert store.put_if_absent(key, b"mine") is False
        assert store.put_if_absent(key, b"theirs") is False
        assert probe.read(key) == b"mine"
        assert probe.stored() == [key]

    def test_empty_object_is_created_once(self, store: ObjectStore, probe: Probe) -> None:
        key = probe.home + "d/e/a"
        assert [store.put_if_absent(key, content) for content in (b"", b"", b"theirs")] == [True, False, False]
        assert probe.read(key) == b""
        taken = probe.home + "d/e/b"
        assert [store.put_if_absent(taken, content) for content in (b"mine", b"")] == [True, False]
        assert probe.read(taken) == b"mine"
        assert [(info.key, info.size) for info in store.list(probe.home)] == [(key, 0), (taken, 4)]

    def test_deleted_object_can_be_created_again(self, store: ObjectStore, probe: Probe) -> None:
        key = probe.home + "a"
        store.put_if_absent(key, b"first")
        store.delete(key)
        assert store.put_if_absent(key, b"second") is True
        assert probe.read(key) == b"second"

    @pytest.mark.parametrize("size", [0, 10_000])
    @pytest.mark.parametrize("attempt", range(10))
    def test_one_of_racing_creators_wins(self, store: ObjectStore, probe: Probe, attempt: int, size: int) -> None:
        key = probe.home + "new/a"
        won = race(8, lambda me: store.put_if_absent(key, b"%d" % me * size))
        assert sorted(won) == [False] * 7 + [True]
        assert probe.read(key) == b"%d" % won.index(True) * size
        assert probe.stored() == [key]


class CopyingContract(CreatingContract):
    """The contract of stores that guarantee ``atomic_copy``."""

    def test_copy_if_absent_creates_once(self, store: ObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "staged", b"mine")
        probe.write(probe.home + "other", b"theirs")
        key = probe.home + "new/final"
        assert store.copy_if_absent(probe.home + "staged", key) is True
        assert store.copy_if_absent(probe.home + "staged", key) is False
        assert store.copy_if_absent(probe.home + "other", key) is False
        store.delete(probe.home + "staged")
        assert probe.read(key) == b"mine"
        for target in (key, probe.home + "free"):
            with pytest.raises(ObjectNotFound) as caught:
                store.copy_if_absent(probe.home + "staged", target)
            assert "staged" in str(caught.value)

    def test_copy_is_independent_of_source(self, store: ObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "source", b"source")
        store.copy_if_absent(probe.home + "source", probe.home + "copy")
        store.put(probe.home + "copy", b"changed")
        assert probe.read(probe.home + "source") == b"source"

    @pytest.mark.parametrize("attempt", range(10))
    def test_one_of_racing_copies_wins(self, store: ObjectStore, probe: Probe, attempt: int) -> None:
        for number in range(8):
            probe.write(probe.home + f"staged-{number}", b"%d" % number)
        key = probe.home + "new/final"
        won = race(8, lambda me: store.copy_if_absent(probe.home + f"staged-{me}", key))
        assert sorted(won) == [False] * 7 + [True]
        assert probe.read(key) == b"%d" % won.index(True)
