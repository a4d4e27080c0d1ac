"""SAS of one directory, signed with a user delegation key of a fake storage account.

The fake (`fake_azure`) names the pages of Microsoft's documentation whose rules it enforces; it computes each signature
itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qs, parse_qsl, quote

import pytest
from contracts.test_commit_stores import self_signed
from fake_azure import FakeAzure
from fake_storage import Answer, Asked, serving

from lancekeep.adapters.credential_vendors.azure import SKEW, AzureVendor, StorageAccount, scope
from lancekeep.domain.authorization import Action
from lancekeep.domain.errors import AccessDenied, InvalidInput, StoreUnavailable

NOW = 1_800_000_000.0
TABLE = "az://lake/root/t.lance"


class Account:
    """A storage account with an object in several places, and its vendor; both have the time of the account."""

    def __init__(self, azure: FakeAzure, url: str) -> None:
        self.azure, self.url = azure, url
        azure.now = NOW
        self.own = self.new()

    def new(self, **options: str) -> AzureVendor:
        given = {"azure_storage_endpoint": self.url, "account_name": "lancekeep", **options}
        return AzureVendor(StorageAccount(duration=3600), given, now=lambda: self.azure.now or 0)

    def vend(
        self, location: str = TABLE, action: Action = Action.READ, principal: str = "key:ada"
    ) -> Mapping[str, str]:
        return self.own.vend(location, action, principal)

    def ask(self, vended: Mapping[str, str], method: str, key: str, container: str = "lake", **query: str) -> Answer:
        sas = dict(parse_qsl(vended["azure_storage_sas_token"]))
        return self.azure.answer(Asked(method, f"/{container}/{key}", {**query, **sas}, {}, b"x"))

    def lists(self, vended: Mapping[str, str], prefix: str | None, container: str = "lake") -> bool:
        given = {} if prefix is None else {"prefix": prefix}
        answer = self.ask(vended, "GET", "", container, restype="container", comp="list", **given)
        return answer.status == 200

    def permitted(self, vended: Mapping[str, str], key: str, container: str = "lake") -> set[str]:
        """Return what may be done with an object that exists, and with one that does not."""
        found = {}
        for name, method, exists in (
            ("read", "GET", 1),
            ("write", "PUT", 1),
            ("create", "PUT", 0),
            ("delete", "DELETE", 1),
        ):
            self.azure.objects.held.pop((container, key), None)
            if exists:
                self.azure.objects.held[container, key] = (b"x", 1)
            found[name] = self.ask(vended, method, key, container).status < 300
        return {name for name, is_permitted in found.items() if is_permitted}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeAzure, str]]:
    azure, certificate = FakeAzure(), self_signed(tmp_path_factory.mktemp("azure"))
    with pytest.MonkeyPatch.context() as patch, serving(azure, certificate) as url:
        patch.setenv("REQUESTS_CA_BUNDLE", certificate[0])
        patch.setenv("IDENTITY_ENDPOINT", f"{url}/msi/token")
        patch.setenv("IDENTITY_HEADER", "header")
        yield azure, url


@pytest.fixture
def account(served: tuple[FakeAzure, str], monkeypatch: pytest.MonkeyPatch) -> Account:
    azure, url = served
    for name, value in (
        ("hierarchical", True),
        ("down", False),
        ("refuses", False),
        ("secret", b"secret"),
        ("asked", {"key": 0, "token": 0}),
    ):
        monkeypatch.setattr(azure, name, value)
    return Account(azure, url)


@pytest.mark.parametrize(
    ("action", "permitted"),
    [
        (Action.READ, {"read"}),
        (Action.WRITE, {"read", "write", "create"}),
        (Action.DELETE, {"read", "write", "create", "delete"}),
    ],
)
def test_a_sas_permits_one_table_and_one_role(account: Account, action: Action, permitted: set[str]) -> None:
    vended = account.vend(action=action)
    assert account.permitted(vended, "root/t.lance/data/x.lance") == permitted
    for outside in ("root/t.lance2/x", "root/u.lance/x", "root/__manifest/x", "root/t.lance", "x/root/t.lance/x", "x"):
        assert account.permitted(vended, outside) == set()
    assert account.permitted(vended, "root/t.lance/x", "other") == set()


def test_a_sas_lists_one_table(account: Account) -> None:
    vended = account.vend()
    prefixes = [None, "", "root/", "root/t.lance", "root/t.lance2/", "root/t.lance/", "root/t.lance/_versions/"]
    assert [account.lists(vended, prefix) for prefix in prefixes] == [False] * 5 + [True] * 2
    assert not account.lists(vended, "root/t.lance/", "other")


def test_a_holder_cannot_change_what_is_signed(account: Account) -> None:
    vended = account.vend()
    sas = dict(parse_qsl(vended["azure_storage_sas_token"]))
    for name, value in (
        ("sdd", "1"),
        ("sp", "rcwdl"),
        ("se", "2030-01-01T00:00:00Z"),
        ("sr", "c"),
        ("spr", "https,http"),
    ):
        assert account.azure.answer(Asked("GET", "/lake/root/t.lance/x", {**sas, name: value}, {}, b"")).status == 403


@pytest.mark.parametrize(
    "name", ["'", '"', "a b", "&sp=rcwdl", "ü", "\U0001f600", "%", "a+b", "$x", "a=b", "~", "*", ".t"]
)
def test_names_of_tables_are_signed_as_they_are(account: Account, name: str) -> None:
    vended = account.vend(f"az://lake/root/{quote(name)}")
    assert account.permitted(vended, f"root/{name}/x") == {"read"}
    assert account.permitted(vended, "root/x") == set()


@pytest.mark.parametrize(
    "location",
    [
        "az://lake",
        "az://lake/",
        "/lake/t",
        "gs://lake/t",
        "az://Lake/t",
        "az://la\nke/t",
        "az://lake/root/a%0Ab",
        "az://lake/root/a%5Cb",
        "az://lake/root//t",
        "az://lake/root/../t",
        "az://lake/root/%2E%2E/t",
        "az://lake/./t",
        "abfss://lake@another.dfs.core.windows.net/t",
    ],
)
def test_credentials_that_cannot_be_limited_are_refused(location: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be limited"):
        scope(location, "lancekeep")


def test_a_location_may_name_the_account() -> None:
    for location in ("abfss://lake@lancekeep.dfs.core.windows.net/a/t%20u", "az://lake/a/t u/"):
        assert scope(location, "lancekeep") == ("lake", "a/t u")


def test_an_account_without_directories_gets_no_wider_credentials(account: Account) -> None:
    account.azure.hierarchical = False
    with pytest.raises(InvalidInput, match="no hierarchical namespace"):
        account.vend()
    assert account.azure.asked["key"] == 0
    account.azure.hierarchical = True
    assert account.vend()


def test_sources_are_refused(account: Account) -> None:
    with pytest.raises(InvalidInput, match="vend_credentials"):
        account.own.vend(TABLE, Action.READ, "key:ada", ["az://lake/root/source"])


def test_sas_are_remembered_until_shortly_before_they_expire(account: Account) -> None:
    first = account.vend()
    assert int(first["expires_at_millis"]) == (NOW + 3600) * 1000
    account.azure.now = NOW + 2699
    assert account.vend() == first
    account.azure.now = NOW + 2701
    others = [account.vend(), account.vend(action=Action.WRITE), account.vend("az://lake/root/u.lance")]
    assert len({each["azure_storage_sas_token"] for each in (first, *others)}) == 4


def test_one_key_signs_for_several_tables_and_outlives_each_sas(account: Account) -> None:
    keys = []
    for later in (0, 3599, 3601, 7300):
        account.azure.now = NOW + later
        vended = account.vend(f"az://lake/root/{later}")
        keys.append(account.azure.asked["key"])
        account.azure.now += 3599
        assert account.permitted(vended, f"root/{later}/x") == {"read"}
        account.azure.now += 1
        assert account.permitted(vended, f"root/{later}/x") == set()
    assert keys == [1, 1, 2, 3]
    assert account.azure.asked["token"] <= 1


def test_the_clock_of_the_server_may_differ(account: Account) -> None:
    vended = account.vend()
    account.azure.now = NOW - SKEW + 1
    assert account.permitted(vended, "root/t.lance/x") == {"read"}


def test_answers_hold_no_secret_of_the_server(account: Account) -> None:
    planted = {
        "account_key": "planted",
        "azure_storage_token": "planted",
        "client_secret": "planted",
        "sas_token": "planted",
    }
    vendor = account.new(**planted)
    answer = vendor.vend(TABLE, Action.READ, "key:ada")
    assert "planted" not in json.dumps(dict(answer))
    names = {"azure_storage_account_name", "azure_storage_endpoint", "azure_storage_sas_token", "expires_at_millis"}
    assert set(answer) == names
    assert parse_qs(answer["azure_storage_sas_token"])["sig"][0] not in repr(vendor)


def test_failures_of_azure_are_not_refusals(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    account.azure.down = True
    with pytest.raises(StoreUnavailable, match="try again"):
        account.vend()
    account.azure.down = False
    nowhere = AzureVendor(StorageAccount(account="lancekeep", endpoint="https://127.0.0.1:1"), {})
    with pytest.raises(StoreUnavailable, match="try again"):
        nowhere.vend(TABLE, Action.READ, "key:ada")
    account.azure.refuses = True
    with pytest.raises(AccessDenied, match="refuses a key"):
        account.vend()
    monkeypatch.setenv("IDENTITY_HEADER", "wrong")
    with pytest.raises(AccessDenied, match="refuses the identity"):
        account.new().vend(TABLE, Action.READ, "key:ada")
