"""Access tokens of Google with a boundary, from fakes of the token services.

The fakes (`fake_gcs`) name the pages of Google's documentation whose rules they enforce.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from fake_gcs import FakeGcs, is_valid, permits
from fake_storage import Answer, Asked, serving

from lancekeep.adapters.credential_vendors.gcs import Account, GcsVendor, access_boundary
from lancekeep.domain.authorization import Action
from lancekeep.domain.errors import AccessDenied, InvalidInput, StoreUnavailable

OPERATIONS = tuple(f"storage.objects.{name}" for name in ("get", "create", "delete", "update", "setIamPolicy"))
LIST = "storage.objects.list"


def rules(location: str, action: Action, *sources: str) -> list[object]:
    """Return the rules of a boundary that the token service accepts."""
    found: list[object] = access_boundary(location, action, sources)["accessBoundary"]["accessBoundaryRules"]
    assert len(found) <= 10
    assert all(is_valid(rule) for rule in found)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("action", "permitted"),
    [
        (Action.READ, {"get"}),
        (Action.WRITE, {"get", "create"}),
        (Action.DELETE, {"get", "create", "delete", "update"}),
    ],
)
def test_a_boundary_permits_one_table_and_one_role(action: Action, permitted: set[str]) -> None:
    boundary = rules("gs://lake/root/t.lance", action)
    inside = {each for each in OPERATIONS if permits(boundary, each, "lake", "root/t.lance/data/x.lance")}
    assert inside == {f"storage.objects.{name}" for name in permitted}
    for outside in ("root/t.lance2/x", "root/u.lance/x", "root/__manifest/x", "root/t.lance", "x/root/t.lance/x", ""):
        assert not any(permits(boundary, each, "lake", outside) for each in OPERATIONS)
    assert not any(permits(boundary, each, "other", "root/t.lance/x") for each in OPERATIONS)


def test_a_boundary_lists_one_table() -> None:
    boundary = rules("gs://lake/root/t.lance", Action.DELETE)
    listed = ["", "root/", "root/t.lance", "root/t.lance2/", "root/t.lance/", "root/t.lance/_versions/"]
    assert [permits(boundary, LIST, "lake", "", prefix) for prefix in listed] == [False] * 4 + [True] * 2
    assert not permits(boundary, LIST, "other", "", "root/t.lance/")


NAMES = [
    "'",
    '"',
    "\\",
    "\\'",
    "x') || true || ('",
    'x") || true || ("',
    "a\nb",
    "\u2028",
    "\U0001f600",
    "ü",
    "${x}",
    "%",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_table_is_no_expression(name: str) -> None:
    boundary = rules(f"gs://lake/root/{quote(name)}.lance", Action.WRITE, f"gs://lake/src/{quote(name)}")
    assert permits(boundary, "storage.objects.create", "lake", f"root/{name}.lance/x")
    assert permits(boundary, "storage.objects.get", "lake", f"src/{name}/x")
    assert permits(boundary, LIST, "lake", "", f"root/{name}.lance/")
    for other in ("root/u.lance/x", "root/x", "x"):
        assert not permits(boundary, "storage.objects.get", "lake", other)
        assert not permits(boundary, LIST, "lake", "", other)


def test_sources_are_read_and_not_listed() -> None:
    boundary = rules("gs://lake/t", Action.DELETE, "gs://lake/s", "gs://other/s", "gs://other/u")
    for bucket, key in (("lake", "s/x"), ("other", "s/x"), ("other", "u/x")):
        assert [each for each in OPERATIONS if permits(boundary, each, bucket, key)] == ["storage.objects.get"]
        assert not permits(boundary, LIST, bucket, "", key)
    assert not any(permits(boundary, each, "lake", "u/x") for each in OPERATIONS)


@pytest.mark.parametrize(
    "location", ["gs://lake", "gs://lake/", "/lake/t", "s3://lake/t", "gs://la'ke/t", "gs://lake%2Ft/x", "gs:///t"]
)
def test_credentials_that_cannot_be_limited_are_refused(location: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be limited"):
        access_boundary(location, Action.READ)


def test_a_boundary_that_is_too_long_is_refused() -> None:
    for sources in ([f"gs://bucket-{n}/t" for n in range(10)], [f"gs://lake/{'x' * 60}{n}" for n in range(30)]):
        with pytest.raises(InvalidInput, match="vend_credentials"):
            access_boundary("gs://lake/t.lance", Action.READ, sources)


class Google:
    """The token services, the file of a key, and a clock that tests move."""

    def __init__(self, gcs: FakeGcs, url: str, folder: Path) -> None:
        self.gcs, self.url, self.ahead = gcs, url, 0.0
        self.key = folder / "key.json"
        self.key.write_text(gcs.key_file(url))

    def vendor(self, **options: str) -> GcsVendor:
        account = Account(credentials=str(self.key), endpoint=f"{self.url}/v1/token")
        return GcsVendor(account, options, now=lambda: time.time() + self.ahead)


@pytest.fixture
def google(tmp_path: Path) -> Iterator[Google]:
    gcs = FakeGcs()
    with serving(gcs) as url:
        yield Google(gcs, url, tmp_path)


def test_tokens_are_remembered_until_shortly_before_they_expire(google: Google) -> None:
    vendor = google.vendor()
    asked = ("gs://lake/t.lance", Action.READ, "key:ada")
    first = vendor.vend(*asked)
    google.ahead = 2600
    assert vendor.vend(*asked) == first
    google.ahead = 2750  # less than a quarter of the hour is left
    second = vendor.vend(*asked)
    others = [
        vendor.vend("gs://lake/u.lance", Action.READ, "key:ada"),
        vendor.vend("gs://lake/t.lance", Action.WRITE, "key:ada"),
        vendor.vend("gs://lake/t.lance", Action.READ, "key:bob"),
        vendor.vend("gs://lake/t.lance", Action.READ, "key:ada", ["gs://lake/s"]),
    ]
    assert len({each["google_storage_token"] for each in (first, second, *others)}) == 6


@pytest.mark.parametrize("states_lifetime", [True, False])
def test_a_limited_token_expires_with_the_token_of_the_account(google: Google, states_lifetime: bool) -> None:
    google.gcs.lifetime, google.gcs.states_lifetime = 600, states_lifetime
    options = google.vendor().vend("gs://lake/t.lance", Action.READ, "key:ada")
    assert 0 <= time.time() + 600 - int(options["expires_at_millis"]) / 1000 < 60


def test_one_token_of_the_account_serves_several_tables_while_it_is_fresh(google: Google) -> None:
    vendor = google.vendor()
    for ahead, accounts in ((0, 1), (800, 1), (1000, 2)):
        google.ahead = ahead
        vendor.vend(f"gs://lake/{ahead}.lance", Action.READ, "key:ada")
        assert len([each for each in google.gcs.tokens.values() if each.rules is None]) == accounts


def test_answers_hold_no_secret_of_the_server(google: Google) -> None:
    options = {"google_service_account_key": "{}", "token": "planted", "account_key": "planted", "allow_http": "true"}
    vendor = google.vendor(**options)
    answer = vendor.vend("gs://lake/t.lance", Action.READ, "key:ada")
    assert set(answer) == {"allow_http", "google_storage_token", "expires_at_millis"}
    assert google.gcs.tokens[answer["google_storage_token"]].rules is not None
    assert answer["google_storage_token"] not in repr(vendor)


def test_failures_of_the_token_service_are_not_refusals(google: Google) -> None:
    google.gcs.down = True
    with pytest.raises(StoreUnavailable, match="try again"):
        google.vendor().vend("gs://lake/t.lance", Action.READ, "key:ada")
    google.gcs.down = False
    nowhere = Account(credentials=str(google.key), endpoint="http://127.0.0.1:1/v1/token")
    with pytest.raises(StoreUnavailable, match="try again"):
        GcsVendor(nowhere, {}).vend("gs://lake/t.lance", Action.READ, "key:ada")
    vendor = google.vendor()
    vendor.vend("gs://lake/t.lance", Action.READ, "key:ada")
    secrets = list(google.gcs.tokens)
    google.gcs.tokens.clear()
    with pytest.raises(AccessDenied, match="invalid_grant") as refused:
        vendor.vend("gs://lake/u.lance", Action.READ, "key:ada")
    assert not any(secret in str(refused.value) for secret in secrets)


def test_a_redirect_takes_no_token_to_another_host(google: Google) -> None:
    class Redirecting:
        def answer(self, asked: Asked) -> Answer:
            return Answer(307, b"", {"Location": f"{google.url}/v1/token"})

    with serving(Redirecting()) as url:
        account = Account(credentials=str(google.key), endpoint=f"{url}/v1/token")
        with pytest.raises(AccessDenied, match="refuses"):
            GcsVendor(account, {}).vend("gs://lake/t.lance", Action.READ, "key:ada")
    assert all(token.rules is None for token in google.gcs.tokens.values())


def test_an_account_without_credentials_is_refused_at_the_start(
    google: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps({"type": "service_account", "private_key": "planted"}))
    for account in (
        Account(credentials=str(tmp_path / "absent.json")),
        Account(credentials=str(broken)),
        Account(credentials=str(google.key), endpoint="sts.googleapis.com"),
        Account(credentials=str(google.key), endpoint="http://sts.googleapis.com/v1/token"),
        Account(credentials=str(google.key), endpoint="http://127.0.0.1.example/v1/token"),
    ):
        with pytest.raises(InvalidInput, match="vending") as refused:
            GcsVendor(account, {})
        assert "planted" not in str(refused.value)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(broken))
    with pytest.raises(InvalidInput, match="the environment has no valid credentials"):
        GcsVendor(Account(), {})


@pytest.mark.parametrize("source", ["file", "metadata"])
def test_the_credentials_of_the_process_are_used(
    google: Google, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workload identity on GKE answers as the metadata server of Compute Engine does."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    if source == "file":
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(google.key))
    else:
        host = google.url.removeprefix("http://")
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
        monkeypatch.setenv("GCE_METADATA_IP", host)
        monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", host)
    vendor = GcsVendor(Account(endpoint=f"{google.url}/v1/token"), {})
    token = vendor.vend("gs://lake/t.lance", Action.READ, "key:ada")["google_storage_token"]
    assert google.gcs.tokens[token].rules
