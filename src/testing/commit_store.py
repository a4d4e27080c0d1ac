"""The contract of `ExternalCommitStore`.

Subclass `CommitStoreContract` and provide the fixture `site`. Add `SharedCommitStoreContract` if several processes use
the store, `BatchContract` if it reserves versions of several tables in one step, and
`lancekeep.testing.unfinished_rows.UnfinishedContract` if it is a `ListsUnfinished`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from urllib.parse import parse_qs, urlsplit

import attrs
import pytest

from lancekeep.domain.errors import Unsupported
from lancekeep.domain.naming import final_path
from lancekeep.domain.version_row import Blocked, Claim, NotReady, Reservation, Reserved, Taken, VersionRow
from lancekeep.testing.commit_site import Site, Writer, claim_versions
from lancekeep.testing.concurrency import race, race_processes

HIGHEST = 2**53 - 1
STRANGE_NAMES = (
    "with space",
    "50%",
    "100%25",
    "%7Bb%7D",
    "{b}",
    "}{",
    "straße",
    "日本",
    "😀",
    "it's",
    "a:b",
    "a*?",
    "",
)


class CommitStoreContract:
    """The contract of every commit store.

    Subclasses provide the fixture `site`. They may lower ``rows`` and ``races`` for a slow server.
    """

    rows = 2000
    races = 30

    @pytest.fixture
    def writer(self, site: Site) -> Iterator[Writer]:
        writer = Writer.at(site)
        with closing(writer.store):
            yield writer

    @pytest.fixture
    def base_uri(self, site: Site) -> str:
        return site.new_base_uri()

    # -- an empty history ---------------------------------------------------------------------------------------

    def test_empty_history_has_no_rows(self, writer: Writer, base_uri: str) -> None:
        store = writer.store
        assert store.get(base_uri, 1) is None
        assert store.latest(base_uri) is None
        assert store.list(base_uri, after=None, limit=None, descending=False) == []
        assert store.delete(base_uri) == 0
        assert store.delete(base_uri, [1, 2]) == 0

    def test_finalize_without_row_writes_nothing(self, writer: Writer, base_uri: str) -> None:
        for version in (1, 2):
            staged = writer.stage(base_uri, version)
            assert writer.store.finalize(attrs.evolve(staged, path=final_path(staged.path))) is False
            assert writer.store.get(base_uri, version) is None
            writer.commit(staged, first=version == 1)

    # -- claiming -----------------------------------------------------------------------------------------------

    def test_row_moves_from_staged_to_final_path(self, writer: Writer, base_uri: str) -> None:
        staged = writer.stage(base_uri, 1)
        assert writer.store.reserve(staged, first=True) == Reserved()
        assert writer.store.get(base_uri, 1) == writer.store.latest(base_uri) == writer.seen(staged)
        final = writer.publish(staged)
        assert writer.store.finalize(final) is True
        assert writer.store.get(base_uri, 1) == writer.store.latest(base_uri) == writer.seen(final)

    def test_final_row_is_immutable(self, writer: Writer, base_uri: str) -> None:
        (final,) = writer.history(base_uri, 1)
        assert writer.store.finalize(attrs.evolve(final, size=final.size + 1, committer="eve")) is True
        assert writer.store.get(base_uri, 1) == final

    def test_finalize_after_delete_creates_no_row(self, site: Site, base_uri: str) -> None:
        """A delayed writer finalizes a version that has been deleted."""
        ours, theirs = Writer.at(site), Writer.at(site)
        with closing(ours.store), closing(theirs.store):
            for versions in (None, [1]):
                staged = ours.stage(base_uri, 1)
                assert ours.store.reserve(staged, first=True) == Reserved()
                final = ours.publish(staged)
                theirs.remove(base_uri, versions)
                assert ours.store.finalize(final) is False
                assert theirs.store.latest(base_uri) is None

    def test_finalize_racing_with_delete_leaves_no_row(self, site: Site, base_uri: str) -> None:
        ours, theirs = Writer.at(site), Writer.at(site)
        with closing(ours.store), closing(theirs.store):
            for _ in range(self.races):
                staged = ours.stage(base_uri, 1)
                assert ours.store.reserve(staged, first=True) == Reserved()
                final = ours.publish(staged)

                def act(number: int, final: VersionRow = final) -> None:
                    if number:
                        ours.store.finalize(final)
                    else:
                        theirs.remove(base_uri, None)

                race(2, act)
                assert ours.store.latest(base_uri) is None

    def test_finalize_by_another_writer_keeps_committer(self, writer: Writer, base_uri: str) -> None:
        staged = writer.stage(base_uri, 1, committer="Ada Lovelace\n<ada@host> ∎")
        assert writer.store.reserve(staged, first=True) == Reserved()
        assert writer.store.finalize(attrs.evolve(writer.publish(staged), committer="helper"))
        row = writer.store.get(base_uri, 1)
        assert row == writer.seen(attrs.evolve(staged, path=final_path(staged.path)))

    def test_reserve_of_own_staged_path_is_idempotent(self, writer: Writer, base_uri: str) -> None:
        staged = writer.stage(base_uri, 1)
        assert [writer.store.reserve(staged, first=True) for _ in range(3)] == [Reserved()] * 3
        assert writer.store.list(base_uri, after=None, limit=None, descending=False) == [writer.seen(staged)]

    def test_final_version_is_taken_for_its_own_staged_path(self, writer: Writer, base_uri: str) -> None:
        staged = writer.stage(base_uri, 1)
        final = writer.commit(staged, first=True)
        again = writer.store.reserve(staged, first=True)
        assert again == (Reserved() if writer.site.derived else Taken(final))  # a derived store compares bytes

    def test_loser_receives_row_of_winner(self, writer: Writer, base_uri: str) -> None:
        winner = writer.stage(base_uri, 1)
        assert writer.store.reserve(winner, first=True) == Reserved()
        assert writer.store.reserve(writer.stage(base_uri, 1), first=True) == Taken(writer.seen(winner))
        final = writer.publish(winner)
        writer.store.finalize(final)
        assert writer.store.reserve(writer.stage(base_uri, 1), first=False) == Taken(writer.seen(final))
        writer.commit(writer.stage(base_uri, 2), first=False)
        assert writer.store.reserve(writer.stage(base_uri, 1), first=True) == Taken(writer.seen(final))

    def test_claim_without_staged_manifest_does_not_win(self, writer: Writer, base_uri: str) -> None:
        (final,) = writer.history(base_uri, 1)
        late = writer.stage(base_uri, 1)
        writer.objects.delete(late.path)
        assert writer.store.reserve(late, first=True) == Taken(final)

    # -- no gaps ------------------------------------------------------------------------------------------------

    def test_empty_history_starts_only_with_first(self, writer: Writer, base_uri: str) -> None:
        assert writer.store.reserve(writer.stage(base_uri, 1), first=False) == NotReady(None)
        assert writer.store.reserve(writer.stage(base_uri, 7), first=False) == NotReady(None)
        assert writer.store.latest(base_uri) is None
        assert writer.store.reserve(branch := writer.stage(base_uri, 7), first=True) == Reserved()
        assert writer.store.latest(base_uri) == writer.seen(branch)

    def test_started_history_refuses_first(self, writer: Writer, base_uri: str) -> None:
        _, latest = writer.history(base_uri, 2)
        for version in (3, 9):
            assert writer.store.reserve(writer.stage(base_uri, version), first=True) == NotReady(latest)
        assert writer.store.latest(base_uri) == latest

    def test_version_beyond_next_is_not_ready(self, writer: Writer, base_uri: str) -> None:
        _, latest = writer.history(base_uri, 2)
        assert writer.store.reserve(writer.stage(base_uri, 4), first=False) == NotReady(latest)
        assert writer.store.get(base_uri, 4) is None

    def test_version_after_staged_predecessor_is_not_ready(self, writer: Writer, base_uri: str) -> None:
        staged = writer.stage(base_uri, 1)
        assert writer.store.reserve(staged, first=True) == Reserved()
        following = writer.stage(base_uri, 2)
        if not writer.site.derived:  # a derived row is final at once
            assert writer.store.reserve(following, first=False) == NotReady(staged)
            assert writer.store.get(base_uri, 2) is None
        writer.store.finalize(writer.publish(staged))
        assert writer.store.reserve(following, first=False) == Reserved()

    def test_deleted_version_below_latest_cannot_be_claimed(self, site: Site, base_uri: str) -> None:
        """An instance with an outdated view must not claim it either."""
        ours, theirs = Writer.at(site), Writer.at(site)
        with closing(ours.store), closing(theirs.store):
            (one,) = ours.history(base_uri, 1)
            assert theirs.store.latest(base_uri) == one
            *_, latest = [ours.commit(ours.stage(base_uri, v), first=False) for v in range(2, 6)]
            assert ours.remove(base_uri, [2, 3]) == 2
            assert theirs.store.reserve(theirs.stage(base_uri, 2), first=False) == NotReady(latest)
            assert theirs.store.reserve(theirs.stage(base_uri, 3), first=False) == NotReady(latest)
            assert theirs.store.latest(base_uri) == latest
            assert theirs.store.get(base_uri, 2) is None
            assert [row.version for row in theirs.store.list(base_uri, after=None, limit=None, descending=False)] == [
                1,
                4,
                5,
            ]

    # -- races --------------------------------------------------------------------------------------------------

    def test_one_of_racing_threads_wins_each_version(self, site: Site, base_uri: str) -> None:
        writers = [Writer.at(site) for _ in range(2)]  # two instances, four threads each
        for version in range(1, self.races + 1):
            rows = [writers[number % 2].stage(base_uri, version) for number in range(8)]

            def claim(number: int, version: int = version, rows: list[VersionRow] = rows) -> Reservation:
                return writers[number % 2].store.reserve(rows[number], first=version == 1)

            answers = race(8, claim)
            (winner,) = [row for row, answer in zip(rows, answers, strict=True) if answer == Reserved()]
            held = writers[0].seen(winner)
            assert [answer for answer in answers if answer != Reserved()] == [Taken(held)] * 7
            assert writers[1].store.get(base_uri, version) == held
            writers[version % 2].store.finalize(writers[0].publish(winner))
        for writer in writers:
            writer.store.close()

    def test_instances_see_rows_of_each_other(self, site: Site, base_uri: str) -> None:
        ours, theirs = Writer.at(site), Writer.at(site)
        with closing(ours.store), closing(theirs.store):
            assert theirs.store.latest(base_uri) is None
            for version in range(1, 7):
                committed = ours.commit(ours.stage(base_uri, version), first=version == 1)
                assert theirs.store.latest(base_uri) == theirs.store.get(base_uri, version) == committed
                ours, theirs = theirs, ours

    def test_deleted_and_restarted_history_is_seen(self, site: Site, base_uri: str) -> None:
        ours, theirs = Writer.at(site), Writer.at(site)
        with closing(ours.store), closing(theirs.store):
            *_, old = ours.history(base_uri, 5)
            assert theirs.store.latest(base_uri) == old
            assert ours.remove(base_uri, None) == 5
            assert theirs.store.latest(base_uri) is None
            *_, new = ours.history(base_uri, 2)
            assert theirs.store.latest(base_uri) == new
            assert theirs.store.get(base_uri, 5) is None
            assert theirs.store.reserve(theirs.stage(base_uri, 6), first=False) == NotReady(new)

    # -- lists --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("descending", [False, True])
    def test_pages_add_up_to_whole_list(self, writer: Writer, base_uri: str, descending: bool) -> None:
        rows = writer.history(base_uri, 23)
        expected = rows[::-1] if descending else rows
        for limit in (1, 2, 7, 23, 100):
            pages: list[VersionRow] = []
            after = None
            while page := writer.store.list(base_uri, after=after, limit=limit, descending=descending):
                assert len(page) <= limit
                pages += page
                after = page[-1].version
            assert pages == expected
        assert writer.store.list(base_uri, after=None, limit=None, descending=descending) == expected
        assert writer.store.list(base_uri, after=None, limit=0, descending=descending) == []
        assert (
            writer.store.list(base_uri, after=10, limit=None, descending=descending)
            == (expected[expected.index(rows[9]) + 1 :])
        )

    def test_long_history_is_listed_completely(self, writer: Writer, base_uri: str) -> None:
        rows = [writer.place(base_uri, version) for version in range(self.rows, 0, -1)]
        writer.store.record(rows)
        expected = [writer.seen(row) for row in reversed(rows)]
        assert writer.store.latest(base_uri) == expected[-1]
        assert writer.store.list(base_uri, after=None, limit=None, descending=False) == expected
        assert writer.store.list(base_uri, after=self.rows - 2, limit=5, descending=False) == expected[-2:]
        assert writer.store.list(base_uri, after=None, limit=2, descending=True) == expected[:-3:-1]
        assert writer.store.delete(base_uri) == self.rows

    def test_highest_versions_are_exact(self, writer: Writer, base_uri: str) -> None:
        below = writer.place(base_uri, HIGHEST - 1)
        writer.store.record([below])
        highest = writer.commit(writer.stage(base_uri, HIGHEST), first=False)
        assert writer.store.latest(base_uri) == writer.store.get(base_uri, HIGHEST) == highest
        assert writer.store.get(base_uri, HIGHEST - 1) == writer.seen(below)
        assert writer.store.list(base_uri, after=HIGHEST - 1, limit=None, descending=False) == [highest]
        assert writer.store.list(base_uri, after=HIGHEST, limit=None, descending=True) == [writer.seen(below)]

    # -- names --------------------------------------------------------------------------------------------------

    def test_histories_with_similar_or_unusual_names_are_separate(self, site: Site, writer: Writer) -> None:
        home = site.new_base_uri("h")
        names = [home, f"{home}/tree/b", f"{home}2", f"{home}_", f"{home}%"]
        names += [f"{home}/{name}x" for name in STRANGE_NAMES]
        latest = {}
        for count, name in enumerate(names, 1):
            *_, latest[name] = writer.history(name, count % 3 + 1)
        assert {name: writer.store.latest(name) for name in names} == latest
        assert writer.remove(names[0], None) == latest[names[0]].version
        del latest[names[0]]
        assert {name: writer.store.latest(name) for name in latest} == latest

    # -- recording and forgetting -------------------------------------------------------------------------------

    def test_record_keeps_existing_row(self, writer: Writer, base_uri: str) -> None:
        one, two = writer.history(base_uri, 2)
        three = writer.place(base_uri, 3)
        for _ in range(2):
            writer.store.record([three, attrs.evolve(one, committer="eve"), attrs.evolve(two, size=two.size)])
        assert writer.store.list(base_uri, after=None, limit=None, descending=False) == [one, two, writer.seen(three)]
        assert writer.store.latest(base_uri) == writer.seen(three)

    def test_record_above_latest_is_seen_by_other_instances(self, site: Site, base_uri: str) -> None:
        ours, theirs = Writer.at(site), Writer.at(site)
        with closing(ours.store), closing(theirs.store):
            (one,) = ours.history(base_uri, 1)
            assert theirs.store.latest(base_uri) == one
            nine = ours.place(base_uri, 9)
            ours.store.record(iter([nine]))
            assert theirs.store.latest(base_uri) == ours.seen(nine)
            assert theirs.store.reserve(theirs.stage(base_uri, 2), first=False) == NotReady(ours.seen(nine))
            theirs.commit(theirs.stage(base_uri, 10), first=False)

    def test_record_enters_rows_of_two_histories(self, site: Site, writer: Writer) -> None:
        names = [site.new_base_uri(), site.new_base_uri()]
        rows = [writer.place(name, version) for version in (2, 1) for name in names]
        writer.store.record(rows)
        for name in names:
            versions = [row.version for row in writer.store.list(name, after=None, limit=None, descending=False)]
            assert versions == [1, 2]

    def test_delete_returns_number_of_rows(self, writer: Writer, base_uri: str) -> None:
        writer.history(base_uri, 6)
        assert writer.remove(base_uri, [5, 6, 7, 7, 5]) == 2
        assert writer.remove(base_uri, []) == 0
        assert [row.version for row in writer.store.list(base_uri, after=None, limit=None, descending=True)] == [
            4,
            3,
            2,
            1,
        ]
        five = writer.commit(writer.stage(base_uri, 5), first=False)  # the latest version may be claimed again
        assert writer.store.latest(base_uri) == five
        assert writer.remove(base_uri, None) == 5
        assert writer.remove(base_uri, None) == 0

    # -- fences -------------------------------------------------------------------------------------------------

    def test_fence_ends_history(self, writer: Writer, base_uri: str) -> None:
        (one,) = writer.history(base_uri, 1)
        fence = VersionRow.fence(base_uri, 2, "redis://elsewhere:6379/0")
        assert writer.store.reserve(fence, first=False) == Reserved()
        assert writer.store.reserve(fence, first=False) == Reserved()
        if writer.site.derived:  # a derived store needs no fence: the manifests decide
            assert writer.store.latest(base_uri) == one
            return
        assert writer.store.reserve(writer.stage(base_uri, 2), first=False) == Taken(fence)
        assert writer.store.reserve(writer.stage(base_uri, 3), first=False) == NotReady(fence)
        late = writer.stage(base_uri, 2)
        assert writer.store.finalize(attrs.evolve(late, path=final_path(late.path))) is True
        assert writer.store.latest(base_uri) == fence

    def test_release_ends_claims_until_it_is_deleted(self, writer: Writer, base_uri: str) -> None:
        """With and without other rows."""
        if writer.site.derived:
            return
        release = VersionRow.release(base_uri)
        for versions in (0, 2):
            writer.history(base_uri, versions)
            for _ in range(2):
                writer.store.record([release])
                assert writer.store.latest(base_uri) == writer.store.get(base_uri, release.version) == release
            claim = writer.stage(base_uri, versions + 1)
            assert writer.store.reserve(claim, first=versions == 0) == NotReady(release)
            assert list(writer.store.latest_all([base_uri])) == [release]
            writer.store.record([writer.place(base_uri, versions + 7)])
            assert writer.store.latest(base_uri) == release
            assert writer.store.delete(base_uri, [versions + 7]) == 1
            assert writer.store.delete(base_uri, [release.version]) == 1
            if versions:
                assert writer.store.reserve(claim, first=False) == Reserved()
                writer.remove(base_uri, None)
            assert writer.store.get(base_uri, release.version) is None

    # -- several histories --------------------------------------------------------------------------------------

    def test_latest_all_returns_latest_row_of_each_history(self, site: Site, writer: Writer) -> None:
        one, two, none = site.new_base_uri(), site.new_base_uri(), site.new_base_uri()
        *_, latest = writer.history(one, 3)
        staged = writer.stage(two, 1)
        assert writer.store.reserve(staged, first=True) == Reserved()
        assert list(writer.store.latest_all([two, none, one])) == [writer.seen(staged), None, latest]
        assert list(writer.store.latest_all([])) == []

    def test_batch_of_one_behaves_like_reserve(self, site: Site, writer: Writer, base_uri: str) -> None:
        staged = writer.stage(base_uri, 1)
        assert writer.store.reserve_all([Claim(staged, first=False)]) == Blocked({base_uri: NotReady(None)})
        for _ in range(2):
            assert writer.store.reserve_all([Claim(staged, first=True)]) == Reserved()
        late = Claim(writer.stage(base_uri, 1), first=True)
        assert writer.store.reserve_all([late]) == Blocked({base_uri: Taken(writer.seen(staged))})

    def test_batch_above_limit_is_refused_and_writes_nothing(self, site: Site, writer: Writer) -> None:
        most = writer.store.guarantees.atomic_rows
        if most > 1000:
            return
        rows = [VersionRow(site.new_base_uri(), 1, f"p-{number}", 1) for number in range(most + 1)]
        with pytest.raises(Unsupported, match=r"dynamodb:// \(up to 100\)"):
            writer.store.reserve_all([Claim(row, first=True) for row in rows])
        assert not any(writer.store.latest_all([row.base_uri for row in rows]))

    # -- itself -------------------------------------------------------------------------------------------------

    def test_url_is_canonical_and_without_secrets(self, site: Site, writer: Writer) -> None:
        again = site.connect()
        assert again.url == writer.store.url
        assert not set(parse_qs(urlsplit(again.url).query)) & set(site.options)
        assert "password" not in again.url + repr(again)
        again.close()
        again.close()


class SharedCommitStoreContract(CommitStoreContract):
    """The contract of stores that several processes share."""

    def test_one_of_racing_processes_wins_each_version(self, site: Site, base_uri: str) -> None:
        count = 2 * self.races
        won = [path for paths in race_processes(3, partial(claim_versions, site, base_uri, count)) for path in paths]
        writer = Writer.at(site)
        rows = writer.store.list(base_uri, after=None, limit=None, descending=False)
        writer.store.close()
        assert [row.version for row in rows] == list(range(1, count + 1))
        assert sorted(final_path(path) for path in won) == sorted(row.path for row in rows)


class BatchContract(CommitStoreContract):
    """The contract of stores that reserve versions of several histories at once."""

    @pytest.fixture
    def names(self, site: Site) -> list[str]:
        return [site.new_base_uri(name) for name in ("a", "b", "c")]

    def test_batch_is_reserved_completely_and_recognized_by_any_row(self, writer: Writer, names: list[str]) -> None:
        store = writer.store
        writer.history(names[0], 1)
        rows = [writer.stage(names[0], 2), writer.stage(names[1], 1), writer.stage(names[2], 7)]
        batch = [Claim(rows[0], first=False), Claim(rows[1], first=True), Claim(rows[2], first=True)]
        assert store.reserve_all(batch) == Reserved()
        assert list(store.latest_all(names)) == rows
        writer.store.finalize(writer.publish(rows[0]))
        assert store.reserve_all(batch) == Reserved()
        writer.commit(writer.stage(names[0], 3), first=False)
        writer.remove(names[0], [1, 2])
        assert store.reserve_all(batch) == Reserved()
        finals = [writer.publish(row) for row in rows[1:]]
        assert all(map(store.finalize, finals))
        answer = store.reserve_all(batch)
        assert isinstance(answer, Blocked)
        assert answer.obstacles == {
            names[0]: NotReady(store.latest(names[0])),
            names[1]: Taken(finals[0]),
            names[2]: Taken(finals[1]),
        }

    def test_obstacle_of_one_claim_blocks_batch(self, writer: Writer, names: list[str]) -> None:
        store = writer.store
        (one,) = writer.history(names[0], 1)
        held = writer.stage(names[1], 1)
        assert store.reserve(held, first=True) == Reserved()
        fence = VersionRow.fence(names[2], 1, "redis://elsewhere:6379/0")
        assert store.reserve(fence, first=True) == Reserved()
        free = Claim(writer.stage(names[0], 2), first=False)
        for base_uri, version, first, obstacle in (
            (names[1], 1, True, Taken(held)),
            (names[1], 2, False, NotReady(held)),
            (names[1], 3, False, NotReady(held)),
            (names[2], 1, True, Taken(fence)),
            (names[2], 2, False, NotReady(fence)),
        ):
            blocked = Claim(writer.stage(base_uri, version), first)
            for batch in ([free, blocked], [blocked, free]):
                assert store.reserve_all(batch) == Blocked({base_uri: obstacle})
            assert list(store.latest_all(names)) == [one, held, fence]

    def test_one_of_racing_batches_wins_and_no_part_is_visible(self, site: Site, names: list[str]) -> None:
        writers = [Writer.at(site) for _ in range(2)]
        for version in range(1, self.races // 5 + 1):
            rows = [[writers[number % 2].stage(name, version) for name in names] for number in range(4)]

            def act(number: int, version: int = version, rows: list[list[VersionRow]] = rows) -> Reserved | Blocked:
                if number == 4:  # reads continuously, so that the change happens during a read
                    for _ in range(10_000):
                        seen = {row.version if row else 0 for row in writers[0].store.latest_all(names)}
                        assert len(seen) == 1, seen
                        if seen == {version}:
                            break
                    return Blocked({})
                claims = [Claim(row, first=version == 1) for row in rows[number]]
                return writers[number % 2].store.reserve_all(claims[::-1] if number > 1 else claims)

            answers = race(5, act)
            (winner,) = [batch for batch, answer in zip(rows, answers, strict=False) if answer == Reserved()]
            taken = {row.base_uri: Taken(row) for row in winner}
            losers = [answer.obstacles for answer in answers[:4] if isinstance(answer, Blocked)]
            assert len(losers) == 3
            assert all(answer and answer.items() <= taken.items() for answer in losers)
            assert list(writers[1].store.latest_all(names)) == winner
            for row in winner:
                writers[version % 2].store.finalize(writers[0].publish(row))
        for writer in writers:
            writer.store.close()
