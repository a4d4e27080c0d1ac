"""Records of digests are replaced without loss."""

from __future__ import annotations

from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.retry import Retry
from lancekeep.application.rows.digests import Digests
from lancekeep.domain.digests import FileDigest
from lancekeep.format.digests import digest_of

A, B = (("data/a.lance", digest_of(b"a")), ("data/b.lance", digest_of(b"b")))


def records(*contents: tuple[tuple[str, FileDigest], ...]) -> Digests:
    digests = Digests(MemoryObjectStore(), Retry())
    for pairs in contents:
        digests.add("t", pairs)
    return digests


def test_removed_file_leaves_a_record_with_the_same_content_as_another() -> None:
    digests = records((A,), (B,))
    digests.fold("t", {"data/b.lance"})
    assert digests.recorded("t") == {"data/a.lance": {A[1]}}


def test_last_removed_file_leaves_no_record() -> None:
    digests = records((A,))
    digests.fold("t", {"data/a.lance"})
    assert digests.keys("t") == set()


def test_merged_record_with_the_same_content_as_another_stays() -> None:
    digests = records((A, B), (A,))
    digests.merge("t", [], {"data/a.lance", "data/b.lance"}, digests.keys("t"))
    assert digests.recorded("t") == {"data/a.lance": {A[1]}, "data/b.lance": {B[1]}}


def test_merge_keeps_present_files_and_those_elsewhere_and_adds_new_ones() -> None:
    elsewhere, new = ("s3://other/data/c.lance", A[1]), ("data/d.lance", B[1])
    digests = records((A, elsewhere), (B,))
    digests.merge("t", [new], {"data/a.lance"}, digests.keys("t"))
    assert digests.recorded("t") == {"data/a.lance": {A[1]}, elsewhere[0]: {A[1]}, new[0]: {B[1]}}
    assert len(digests.keys("t")) == 1
