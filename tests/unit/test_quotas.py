"""Quotas: the policy file, the decisions, and the meter."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.adapters.authorization.policy_file import read_policy
from lancekeep.application.upkeep.quota_usage import QuotaUsage
from lancekeep.domain.authorization import EVERYONE, Principal, Quota
from lancekeep.domain.catalog import Change, Entries, Put, Remove
from lancekeep.domain.errors import InvalidInput, QuotaExceeded, StoreUnavailable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.domain.quotas import Held, Used, require_room, require_space
from lancekeep.domain.rights import RIGHT_OF
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.metering import Meter
from lancekeep.entrypoints.rest.security.quotas import GROWING

ADA = Principal("key:ada", frozenset({"engineers"}))
BOB = Principal("key:bob")


def of(text: str) -> ObjectId:
    return ObjectId.of(text)


def entry(name: str, kind: str = TABLE, *, listed: bool = False) -> ManifestEntry:
    return ManifestEntry(of(name).key, kind, f"at-{name}" if kind == TABLE else None, listed=listed)


def view(*names: str) -> Entries:
    return Entries(1, [entry("ml", NAMESPACE), entry("ml.a", NAMESPACE), *map(entry, names)], {})


def read(tmp_path: Path, *quotas: str) -> tuple[Quota, ...]:
    path = tmp_path / "policy.toml"
    path.write_text("".join(f"[[quotas]]\n{each}\n" for each in quotas))
    return read_policy(path).quotas


def test_quotas_of_a_policy_file(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        'on = "ml"\ntables = 1000\nbytes = "2 TB"',
        'on = ["a.b"]\nbytes = "1.5 GiB"\ngroups = ["engineers"]',
        'on = ""\nbytes = 12\nprincipals = ["key:bob"]',
    )
    assert found == (
        Quota(of("ml"), 1000, 2 * 10**12, frozenset({EVERYONE}), frozenset(), 1),
        Quota(ObjectId(("a.b",)), None, 3 << 29, frozenset(), frozenset({"engineers"}), 2),
        Quota(of(""), None, 12, frozenset({"key:bob"}), frozenset(), 3),
    )
    assert [each.title for each in found] == [
        "quota 1: 1,000 tables and 2,000,000,000,000 bytes for ml",
        "quota 2: 1,610,612,736 bytes for a.b",
        "quota 3: 12 bytes for the catalog",
    ]
    policy = read_policy(tmp_path / "policy.toml")
    assert [[each.number for each in policy.limiting(who)] for who in (ADA, BOB)] == [[1, 2], [1, 3]]
    sizes = [read(tmp_path, f'on = ""\nbytes = "{each}"')[0].bytes for each in ("7B", "7 kB", "7KiB", "7 MB", "1 PB")]
    assert sizes == [7, 7000, 7168, 7 * 10**6, 10**15]


@pytest.mark.parametrize(
    ("quota", "message"),
    [
        ("tables = 1", "quota 1: on is missing"),
        ('on = "ml"', "limits nothing; give tables, bytes, or both"),
        ('on = "ml"\ntables = -1', "tables is -1; give a number of tables"),
        ('on = "ml"\ntables = true', "tables is True"),
        ('on = "ml"\nbytes = "2 tons"', "bytes is '2 tons'; give a number, or text such as '2 TB'"),
        ('on = "ml"\nbytes = "-2 TB"', "bytes is '-2 TB'"),
        ('on = "ml"\nbytes = 1.5', "bytes is 1.5"),
        ('on = "ml"\ntables = 1\nprincipals = []', "limits no caller; name one, leave both keys out"),
        ('on = "ml"\ntables = 1\nprincipals = ["ada"]', "the principal 'ada' has no kind"),
        ('on = "ml"\ntables = 1\nrows = 1', "unknown key 'rows'; known are on, principals, groups, tables, bytes"),
        ('on = "ml$/"\ntables = 1', "quota 1: "),
    ],
)
def test_invalid_quotas_are_refused(quota: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, quota)
    assert message in str(caught.value)


def test_room_is_counted_in_the_subtree_after_the_changes() -> None:
    quotas = [Quota(of("ml"), tables=3, number=4)]
    new = Put(entry("ml.new"))
    require_room(view("ml.x", "ml.a.y", "mlx", "t"), [new], quotas)
    full = view("ml.x", "ml.a.y", "ml.z", "t")
    with pytest.raises(QuotaExceeded, match=r"^ml.new: no room in quota 4: 3 tables for ml. It has 3 tables, and the"):
        require_room(full, [new], quotas)
    with pytest.raises(QuotaExceeded, match="It has 2 tables, and the request adds 2"):
        require_room(view("ml.x", "ml.y"), [new, Put(entry("ml.a.new"))], quotas)
    with pytest.raises(QuotaExceeded, match="It has more than 3 tables"):
        require_room(view("ml.x", "ml.a.y", "ml.z", "ml.u", "ml.v"), [new], quotas)
    fitting: list[list[Change]] = [
        [Put(entry("ml.x"))],
        [Put(entry("ml.space", NAMESPACE))],
        [Put(entry("new"))],
        [new, Remove(entry("ml.x").object_id)],
        [Remove(entry("ml.x").object_id)],
    ]
    for changes in fitting:
        require_room(full, changes, quotas)
    with pytest.raises(QuotaExceeded):
        require_room(full, [new, Remove(of("t").key)], quotas)  # moved into the subtree
    with pytest.raises(QuotaExceeded):
        require_room(full, [new, Remove(of("ml.none").key)], quotas)
    with pytest.raises(QuotaExceeded, match=r"^a: no room in quota 0: 0 tables for a"):
        require_room(view(), [Put(entry("a"))], [Quota(of("a"), tables=0)])
    with pytest.raises(QuotaExceeded, match=r"1 tables for t. It has 1 tables"):
        require_room(view("t"), [Put(entry("t.x"))], [Quota(of("t"), tables=1)])
    require_room(full, [new], [Quota(of("ml"), bytes=0), Quota(of("other"), tables=0)])


def test_reserved_directory_counts_once_and_as_new() -> None:
    listed = Entries(1, [entry("a"), entry("new", listed=True)], {})
    require_room(listed, [Put(entry("new"))], [Quota(of(""), tables=2)])
    with pytest.raises(QuotaExceeded, match="It has 1 tables"):
        require_room(listed, [Put(entry("new"))], [Quota(of(""), tables=1)])


def test_space_ends_at_the_bytes_of_the_quota() -> None:
    quota = Quota(of("ml"), bytes=10, number=1)
    require_space(of("ml.t"), quota, Used(9, 1.0))
    with pytest.raises(QuotaExceeded, match=r"^ml.t: no room in quota 1: 10 bytes for ml. Its tables had 10 bytes 61"):
        require_space(of("ml.t"), quota, Used(10, 61.2))


def test_operations_that_add_bytes_are_operations() -> None:
    assert RIGHT_OF.keys() >= GROWING


def test_the_command_shows_the_quotas_of_an_object(tmp_path: Path) -> None:
    read(
        tmp_path, 'on = "ml"\ntables = 1000', 'on = "ml.a"\nbytes = 1', 'on = ""\ntables = 1\nprincipals = ["key:ada"]'
    )
    path = tmp_path / "policy.toml"
    path.write_text(path.read_text() + '[[grants]]\nrole = "write"\non = "ml"\nprincipals = ["key:bob"]\n')
    line = ["policy", "test", str(path), "key:bob", "DeclareTable", "ml.new"]
    result = CliRunner().invoke(command, line, obj=lancekeep)
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "  quota 1: 1,000 tables for ml")
    assert "quota 3" not in result.output
    found = json.loads(CliRunner().invoke(command, [*line, "--json"], obj=lancekeep).stdout)
    assert found["quotas"] == [{"quota": 1, "on": "ml", "tables": 1000, "bytes": None}]


class _Usage:
    """Measures 1 byte more each time; fails if it has an error."""

    def __init__(self) -> None:
        self.asked: list[Collection[Quota]] = []
        self.error: Exception | None = None
        self.measured = Event()

    def measure(self, quotas: Collection[Quota], proceed: Callable[[], bool]) -> dict[ObjectId, Held]:
        assert proceed()
        self.asked.append([*quotas])
        try:
            if self.error is not None:
                raise self.error
            sized = {each.subtree for each in quotas if each.bytes is not None}
            size = len(self.asked)
            return {each.subtree: Held(3, size if each.subtree in sized else None) for each in quotas}
        finally:
            self.measured.set()


def test_meter_keeps_its_figures_until_the_next_measurement() -> None:
    quotas: list[Quota] = []
    usage, now = _Usage(), [100.0]
    meter = Meter(usage, lambda: quotas, 60, clock=lambda: now[0])  # type: ignore[arg-type] # measures the same
    meter.measure()
    assert (usage.asked, meter.age(), meter.usages()) == ([], None, [])
    quotas.append(Quota(of("ml"), tables=6, number=1))
    assert meter.usages() == [QuotaUsage(1, of("ml"), 6)]
    meter.measure()
    assert (meter.used(of("ml")), meter.age()) == (None, 0)  # its tables alone were measured
    quotas += [Quota(of("ml"), bytes=5), Quota(of("ml"), bytes=8, tables=1), Quota(of("a"), bytes=5)]
    assert meter.used(of("a")) is None
    meter.measure()
    assert usage.asked == [quotas[:1], quotas]
    now[0] += 30
    assert meter.used(of("ml")) == Used(2, 30)
    usage.error = StoreUnavailable("no")
    with pytest.raises(StoreUnavailable):
        meter.measure()
    assert meter.used(of("ml")) == Used(2, 30)
    assert [(each.tables, each.bytes, each.share) for each in meter.usages()] == [
        (3, None, 0.5),
        (3, 2, 0.4),
        (3, 2, 3.0),
        (3, 2, 0.4),
    ]
    for each in meter.usages():
        assert each.measured is not None
        assert 30 <= (datetime.now(UTC) - each.measured).total_seconds() < 40


def test_use_of_a_quota_is_the_same_after_a_request() -> None:
    at = datetime(2026, 11, 28, 4, 30, tzinfo=UTC)
    whole = QuotaUsage(2, of("ml.a"), 10, 400, 4, 300, at)
    assert whole.document() == {
        "quota": 2,
        "id": ["ml", "a"],
        "max_tables": 10,
        "max_bytes": 400,
        "tables": 4,
        "bytes": 300,
        "share": 0.75,
        "measured": "2026-11-28T04:30:00+00:00",
    }
    unmeasured = QuotaUsage(1, ObjectId(), 10)
    assert unmeasured.document() == {"quota": 1, "id": [], "max_tables": 10}
    for each in (whole, unmeasured):
        assert QuotaUsage.parse(each.document()) == each
    assert QuotaUsage(1, of("ml"), max_tables=0, tables=0).share == 1  # has no room


def test_meter_measures_in_its_thread_as_soon_as_a_quota_lacks_a_figure(caplog: pytest.LogCaptureFixture) -> None:
    usage, quotas = _Usage(), [Quota(of("ml"), bytes=5)]
    usage.error = StoreUnavailable("no")
    meter = Meter(usage, lambda: quotas, 1e6)  # type: ignore[arg-type] # measures the same
    meter.start()
    assert usage.measured.wait(30)
    usage.error = None
    found = None
    while found is None:  # each question makes the thread measure
        found = meter.used(of("ml"))
    assert found.bytes >= 2
    assert meter.stop(30)
    assert "were not measured: no" in caplog.text


def test_new_quotas_are_measured_when_they_are_shown_and_failures_after_the_pause() -> None:
    usage, quotas = _Usage(), [Quota(of("ml"), tables=5)]
    meter = Meter(usage, lambda: [*quotas], 1e6)  # type: ignore[arg-type] # measures the same
    meter.start()
    assert usage.measured.wait(30)
    usage.error = StoreUnavailable("no")
    quotas.append(Quota(of("a"), tables=5))
    usage.measured.clear()
    while not usage.measured.wait(0.05):  # the thread may not rest yet
        meter.usages()
    tried = len(usage.asked)
    usage.measured.clear()
    for _ in range(20):
        assert [each.tables for each in meter.usages()] == [3, None]
    assert not usage.measured.wait(0.2)
    assert (len(usage.asked), tried) == (2, 2)
    assert meter.stop(30)


def test_measurement_ends_with_the_server() -> None:
    class Endless(_Usage):
        def measure(self, quotas: Collection[Quota], proceed: Callable[[], bool]) -> dict[ObjectId, Held]:
            self.measured.set()
            while proceed():
                pass
            return {each.subtree: Held(0, 0) for each in quotas}

    usage = Endless()
    meter = Meter(usage, lambda: [Quota(of("ml"), bytes=5)], 60)  # type: ignore[arg-type] # measures the same
    meter.start()
    assert usage.measured.wait(30)
    assert meter.stop(30)
    assert meter.used(of("ml")) is None  # the figures are incomplete
