"""Keys and the policy of a server by its API: what administrators do, and what no other caller can do."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Barrier, Event
from typing import Any
from uuid import uuid4

import attrs
import httpx
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from joserfc import jwk, jwt
from rest_server import running

import lancekeep
from lancekeep import local_files
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.adapters.authorization.policy_edits import PolicyEdits
from lancekeep.adapters.authorization.policy_file import read_policy
from lancekeep.adapters.rest.administration import RESPONSES
from lancekeep.adapters.rest.routes import ADMINISTRATION, GET, Route
from lancekeep.application.catalog import directory_of
from lancekeep.domain.rights import OF_ADMINS, Right
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.audit import AuditLog
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.entrypoints.rest.task import SeveralTasks
from lancekeep.entrypoints.serving_catalogs import served_by

KEYS, POLICY = "/lancekeep/v1/keys", "/lancekeep/v1/policy"
ALMOST = ", ".join(f'"{right}"' for right in Right if right is not Right.PURGE)
FILE = f"""# who may do what; reviewed each spring
[[grants]]
role = "admin"
on = ""
principals = ["key:root"]   # on call

# the team of features
[[grants]]
role = "admin"
# until they have a lead
on = "ml"
principals = ["key:lead"]

# readers
[[grants]]
role = "read"
on = ""
principals = ["key:reader"]

[[grants]]
rights = [{ALMOST}]
on = ""
principals = ["key:almost"]

[[grants]]
role = "admin"
on = ""
groups = ["admins"]

[[quotas]]
on = "ml"
tables = 10
"""
BODIES: dict[str, Any] = {
    "create_key": {"name": "new"},
    "expire_key": {"expires_in_seconds": 60},
    "explain_decision": {"principal": "key:root", "operation": "read"},
    "add_grant": {"on": "", "role": "admin", "principals": ["key:lead"]},
    "remove_grant": {"grant": 3},
    "replace_policy": {"toml": FILE},
}


@attrs.frozen
class Site:
    """A server with keys, a policy and an audit log.

    Attributes:
        uri: Its URL.
        folder: The folder of its files.
        keys: The API keys by name.
        app: Its application, if it is in this process.
    """

    uri: str
    folder: Path
    keys: dict[str, str] = attrs.field(repr=False)
    app: Any = None

    @property
    def policy(self) -> Path:
        return self.folder / "policy.toml"

    @property
    def file(self) -> KeyFile:
        return KeyFile(self.folder / "keys.json")

    def ask(self, path: str, body: Any = None, who: str = "root", **headers: str) -> httpx.Response:
        """Send a request, by GET without a body."""
        given = {
            "x-api-key": self.keys.get(who, who),
            **{name.replace("_", "-"): each for name, each in headers.items()},
        }
        method = "GET" if body is None else "POST"
        return httpx.request(method, self.uri + path, json=body, headers=given, timeout=60, verify=False)

    def ask_for(self, route: Route, who: str = "root", **headers: str) -> httpx.Response:
        path = route.path.replace("{key_id}", self.id_of("reader"))
        return self.ask(path, None if route.method == GET else BODIES.get(route.operation, {}), who, **headers)

    def id_of(self, name: str) -> str:
        return self.keys[name].split("_")[1]

    @property
    def tag(self) -> str:
        return self.ask(POLICY).headers["etag"]

    def audited(self, event: str = "request") -> list[dict[str, Any]]:
        lines = map(json.loads, (self.folder / "audit.jsonl").read_text().splitlines())
        return [line for line in lines if line["event"] == event]

    def state(self) -> tuple[str, str]:
        return (self.folder / "keys.json").read_text(), self.policy.read_text()

    def reads(self, who: str, table: str = "ml$t") -> int:
        return self.ask(f"/v1/table/{table}/count_rows", {}, who).status_code


@contextmanager
def served(folder: Path, policy: str | None = FILE, *, has_keys: bool = True, **options: Any) -> Iterator[Site]:
    file = KeyFile(folder / "keys.json")
    keys = {name: file.create(name)[1] for name in ("root", "lead", "reader", "almost", "stranger")}
    keys["member"] = file.create("member", ["admins"])[1]
    if policy is not None:
        (folder / "policy.toml").write_text(policy)
        options["policy"] = str(folder / "policy.toml")
    settings = ServerSettings(log_level="error", keys=str(file.path) if has_keys else "", **options)
    audit = AuditLog(folder / "audit.jsonl")
    with lancekeep.connect(
        str(folder / "lake"), commit_store="conditional-put://", storage_options={"fsync": "false"}
    ) as catalog:
        catalog.create_namespace("ml")
        catalog.write("ml.t", pa.table({"id": [1]}))
        own = directory_of(catalog)
        security = security_of(settings, {}, own.versions.base_paths, audit.reloaded, usage=own.usage)
        app = create_app(
            CatalogNamespace(catalog),
            settings,
            around=security.around,
            inside=security.inside,
            middleware=security.middleware,
            audit=audit,
            decisions=security.decisions,
        )
        with running(app) as uri:
            yield Site(uri, folder, keys, app)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with served(tmp_path) as site:
        yield site


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(each) for each in arguments], obj=lancekeep)


def fits(answer: httpx.Response, operation: str) -> dict[str, Any]:
    """Return the fields of an answer, which are those of the OpenAPI document."""
    assert answer.is_success, answer.text
    RESPONSES[f"{operation}Response"].model_validate(answer.json(), extra="forbid")
    found: dict[str, Any] = answer.json()
    return found


# -- keys -------------------------------------------------------------------------------------------------------------


def test_an_administrator_manages_keys(site: Site) -> None:
    answer = site.ask(f"{KEYS}/create", {"name": "ann", "groups": ["admins"], "expires_in_seconds": 3600})
    made = fits(answer, "CreateKey")
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    assert (made["principal"], made["groups"]) == ("key:ann", ["admins"])
    assert site.reads(made["key"]) == 200

    listed = fits(site.ask(KEYS), "ListKeys")["keys"]
    assert [each["principal"] for each in listed][-2:] == ["key:member", "key:ann"]
    assert listed[-1] == {name: value for name, value in made.items() if name != "key"}

    rotated = fits(site.ask(f"{KEYS}/{made['id']}/rotate", {"overlap_seconds": 600}), "RotateKey")
    assert rotated["replaces"]["id"] == made["id"]
    assert site.reads(made["key"]) == site.reads(rotated["key"]) == 200

    ended = fits(site.ask(f"{KEYS}/{made['id']}/expire", {"expires_in_seconds": 1}), "ExpireKey")
    assert datetime.fromisoformat(ended["expires"]) < datetime.now(UTC) + timedelta(seconds=2)
    fits(site.ask(f"{KEYS}/{rotated['id']}/revoke", {}), "RevokeKey")
    assert site.reads(rotated["key"]) == 401
    assert site.file.keys()[made["id"]].expires is not None

    assert json.loads(run("keys", "list", "--file", site.file.path, "--json").stdout) == [
        {"expires": None, **each} for each in site.ask(KEYS).json()["keys"]
    ]


def test_a_list_of_keys_is_validated_by_its_tag(site: Site) -> None:
    tag = site.ask(KEYS).headers["etag"]
    assert site.ask(KEYS, if_none_match=tag).status_code == 304
    site.ask(f"{KEYS}/create", {"name": "ann"})
    assert site.ask(KEYS, if_none_match=tag).status_code == 200


def test_no_secret_and_no_hash_is_in_another_answer_or_in_the_audit_log(site: Site) -> None:
    made = site.ask(f"{KEYS}/create", {"name": "ann"}).json()
    rotated = site.ask(f"{KEYS}/{made['id']}/rotate", {}).json()
    answers = [
        site.ask(KEYS),
        site.ask(f"{KEYS}/{made['id']}/expire", {"expires_in_seconds": 60}),
        site.ask(f"{KEYS}/{rotated['id']}/revoke", {}),
        site.ask(f"{KEYS}/{rotated['id']}/revoke", {}),
        site.ask(f"{KEYS}/{made['key']}/revoke", {}),
        site.ask(f"{KEYS}/create", {"name": made["key"]}),
        site.ask(POLICY),
        site.ask("/metrics"),
    ]
    seen = "".join(each.text + str(each.headers) for each in answers) + (site.folder / "audit.jsonl").read_text()
    for key in site.file.keys().values():
        assert key.digest not in seen
    for whole in (made["key"], rotated["key"]):
        assert whole.split("_", 2)[2] not in seen
    assert 'lancekeep_requests_total{operation="CreateKey",status="201"}' in seen
    assert 'lancekeep_commits_total{operation="CreateKey"' not in seen  # a key is no commit


def test_a_change_of_keys_has_a_line_that_says_who_changed_what(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    made = site.ask(f"{KEYS}/create", {"name": "ann", "groups": ["a", "b"]}).json()
    site.ask(f"{KEYS}/{made['id']}/revoke", {})
    site.ask(f"{KEYS}/create", {"name": "eve"}, "lead")
    created, revoked, refused = site.audited()
    assert created["changed"] == f"created key {made['id']} of key:ann in a, b"
    assert revoked["changed"] == f"revoked key {made['id']} of key:ann in a, b"
    assert [each["principal"] for each in (created, revoked)] == ["key:root"] * 2
    assert (created["operation"], created["decision"], created["status"]) == ("CreateKey", "allowed", 201)
    assert (refused["principal"], refused["decision"], refused["status"]) == ("key:lead", "refused", 403)
    assert "changed" not in refused
    monkeypatch.setenv("COLUMNS", "400")
    shown = run("audit", site.folder / "audit.jsonl", "--decision", "allowed").output
    assert f"revoked key {made['id']} of key:ann in a, b" in shown


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("create", {}, 400),
        ("create", {"name": ""}, 400),
        ("create", {"name": "../../etc"}, 400),
        ("create", {"name": "a\nb"}, 400),
        ("create", {"name": "x" * 100_000}, 400),
        ("create", {"name": 1}, 400),
        ("create", {"name": "a", "groups": "admins"}, 400),
        ("create", {"name": "a", "groups": ["ok", "no good"]}, 400),
        ("create", {"name": "a", "groups": [f"g{number}" for number in range(101)]}, 400),
        ("create", {"name": "a", "expires_in_seconds": 0}, 400),
        ("create", {"name": "a", "expires_in_seconds": -1}, 400),
        ("create", {"name": "a", "expires_in_seconds": 10**30}, 400),
        ("create", {"name": "a", "expires_in_seconds": 1e400}, 400),
        ("create", {"name": "a", "key": "lk_mine"}, 400),
        ("create", {"name": "a", "id": ["x"]}, 400),
        ("create", [], 400),
        ("ffffffffffff/rotate", {}, 404),
        ("ffffffffffff/revoke", {}, 404),
        ("ffffffffffff/expire", {"expires_in_seconds": 60}, 404),
        ("%2e%2e%2fx/revoke", {}, 404),
        ("a/revoke", {"key_id": "b"}, 400),
        ("ffffffffffff/rotate", {"overlap_seconds": -1}, 400),
        ("ffffffffffff/rotate", {"overlap_seconds": 10**12}, 400),
        ("ffffffffffff/expire", {}, 400),
        ("ffffffffffff/expire", {"expires_in_seconds": 0}, 400),
    ],
)
def test_malformed_requests_about_keys_change_nothing(site: Site, path: str, body: Any, status: int) -> None:
    before = site.state()
    content = re.sub('"?Infinity"?', "1e400", json.dumps(body))
    headers = {"x-api-key": site.keys["root"], "content-type": "application/json"}
    answer = httpx.post(f"{site.uri}{KEYS}/{path}", content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert len(answer.content) < 2000
    assert site.state() == before


def test_an_expired_key_is_neither_rotated_nor_extended(site: Site) -> None:
    past = datetime.now(UTC) - timedelta(days=2)
    key, _ = site.file.create("old", (), past + timedelta(days=1), past)
    before = site.state()
    for path, body in (("rotate", {}), ("expire", {"expires_in_seconds": 600})):
        answer = site.ask(f"{KEYS}/{key.id}/{path}", body)
        assert (answer.status_code, "has expired" in answer.text) == (400, True)
    assert site.state() == before
    assert site.ask(f"{KEYS}/{key.id}/revoke", {}).status_code == 200


def test_a_file_has_a_bound_of_keys(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancekeep.adapters.authentication.api_keys.MOST_KEYS", len(site.file.keys()))
    before = site.state()
    for path in ("create", f"{site.id_of('reader')}/rotate"):
        answer = site.ask(f"{KEYS}/{path}", {"name": "ann"} if path == "create" else {})
        assert (answer.status_code, "revoke keys that expired" in answer.text) == (400, True)
    assert site.state() == before


def test_a_caller_does_not_end_its_own_key(site: Site) -> None:
    before, own = site.state(), site.id_of("root")
    for path, body in (
        ("revoke", {}),
        ("expire", {"expires_in_seconds": 10**8}),
        ("rotate", {"overlap_seconds": 0}),
    ):
        answer = site.ask(f"{KEYS}/{own}/{path}", body)
        assert (answer.status_code, f"the request uses the key {own} itself" in answer.text) == (400, True), path
        bearer = {"authorization": f"Bearer {site.keys['root']}"}
        assert httpx.post(f"{site.uri}{KEYS}/{own}/{path}", json=body, headers=bearer).status_code == 400
    assert site.state() == before
    new = site.ask(f"{KEYS}/{own}/rotate", {}).json()["key"]
    assert site.ask(f"{KEYS}/{own}/revoke", {}, new).status_code == 200
    assert site.ask(KEYS).status_code == 401
    assert site.ask(KEYS, None, new).status_code == 200


# -- the policy -------------------------------------------------------------------------------------------------------


def test_an_administrator_reads_the_policy_and_asks_what_it_decides(site: Site) -> None:
    found = fits(site.ask(POLICY), "DescribePolicy")
    assert found["toml"] == FILE
    assert [(each["grant"], each["role"], each["id"], each["for"]) for each in found["grants"]] == [
        (1, "admin", [], ["key:root"]),
        (2, "admin", ["ml"], ["key:lead"]),
        (3, "read", [], ["key:reader"]),
        (4, None, [], ["key:almost"]),
        (5, "admin", [], ["group admins"]),
    ]
    assert found["quotas"] == [{"quota": 1, "on": "ml", "tables": 10, "bytes": None}]
    assert json.loads(run("policy", "show", site.policy, "--json").stdout) == {
        name: found[name] for name in ("grants", "quotas")
    }
    for question in (
        {"principal": "key:lead", "operation": "DropTable", "id": ["ml", "t"]},
        {"principal": "key:lead", "operation": "DropTable", "id": ["other"]},
        {"principal": "jwt:eve", "operation": "admin", "groups": ["admins"]},
    ):
        answer = fits(site.ask(f"{POLICY}/test", question), "ExplainDecision")
        names = [question["principal"], question["operation"], ".".join(question.get("id", []))]
        groups = [each for group in question.get("groups", []) for each in ("--group", group)]
        shown = run("policy", "test", site.policy, *names, *groups, "--json")
        assert json.loads(shown.stdout) == {name: each for name, each in answer.items() if name != "explanation"}
        plain = run("policy", "test", site.policy, *names, *groups).output
        assert " ".join(answer["explanation"].split()) in " ".join(plain.split())
    for who, decision in (("root", "allowed"), ("lead", "hidden"), ("almost", "denied")):
        question = {"principal": f"key:{who}", "operation": "CreateKey", "id": ["ml"]}
        assert site.ask(f"{POLICY}/test", question).json()["decision"] == decision
    assert site.ask(f"{POLICY}/test", {"principal": "key:a", "operation": "x"}).status_code == 400


def test_grants_are_added_and_removed_with_the_comments_of_others(site: Site) -> None:
    fields = {"role": "read", "on": ["ml", "a.b"], "principals": ["key:stranger"], "columns": ["id", 'q"\\\u007f\tü']}
    assert site.reads("stranger") == 404
    answer = site.ask(f"{POLICY}/grants/add", fields)
    added = fits(answer, "AddGrant")["grant"]
    assert (answer.status_code, added["grant"], answer.headers["etag"]) == (201, 6, site.tag)
    assert site.policy.read_text().startswith(FILE + "\n[[grants]]\n")
    assert read_policy(site.policy).grants[5].restriction.columns == {"id", 'q"\\\u007f\tü'}  # type: ignore[union-attr]
    site.ask(f"{POLICY}/grants/add", {"on": "ml", "role": "read", "principals": ["key:stranger"]})
    assert site.reads("stranger") == 200

    answer = site.ask(f"{POLICY}/grants/remove", {"grant": 2}, if_match=site.tag)
    removed = fits(answer, "RemoveGrant")
    assert removed["removed"] == (
        '[[grants]]\nrole = "admin"\n# until they have a lead\non = "ml"\nprincipals = ["key:lead"]\n'
    )
    assert answer.headers["etag"] == site.tag
    text = site.policy.read_text()
    for kept in ("# who may do what; reviewed each spring", "# on call", "# the team of features\n\n# readers"):
        assert kept in text
    assert [each.number for each in read_policy(site.policy).grants] == [1, 2, 3, 4, 5, 6]
    assert len(read_policy(site.policy).quotas) == 1
    lines = [each["changed"] for each in site.audited() if "changed" in each]
    assert lines[1:] == [
        "added grant 7: role read on ml for key:stranger",
        "removed grant 2: role admin on ml for key:lead",
    ]


def test_the_policy_is_replaced_as_it_is_given(site: Site) -> None:
    text = f"# all new\r\n{FILE}"
    answer = site.ask(f"{POLICY}/replace", {"toml": text}, if_match=site.tag)
    assert len(fits(answer, "ReplacePolicy")["grants"]) == 5
    assert site.policy.read_bytes() == text.encode()
    assert answer.headers["etag"] == site.tag
    assert "5 grants, 1 quotas" in site.audited()[-2]["changed"]


@pytest.mark.parametrize("path", ["grants/add", "grants/remove", "replace"])
def test_a_change_after_another_change_needs_the_new_tag(site: Site, path: str) -> None:
    body = {"grants/add": BODIES["add_grant"], "grants/remove": {"grant": 99}, "replace": {"toml": FILE}}[path]
    tag = site.tag
    site.ask(f"{POLICY}/grants/add", BODIES["add_grant"])
    before = site.state()
    for given in (tag, f'"x", {tag}', f"W/{site.tag}", '""', "x"):
        answer = site.ask(f"{POLICY}/{path}", body, if_match=given)
        assert (answer.status_code, answer.headers["etag"]) == (412, site.tag), given
    if path != "grants/add":
        assert site.ask(f"{POLICY}/{path}", body).status_code == 428
    assert site.state() == before
    assert site.ask(f"{POLICY}/{path}", body, if_match=f'"x", {site.tag}').status_code in (200, 201, 400)
    assert site.ask(f"{POLICY}/replace", {"toml": FILE}, if_match="*").status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("grants/add", {"role": "admin", "principals": ["key:a"]}),
        ("grants/add", {"on": "ml", "principals": ["key:a"]}),
        ("grants/add", {"on": "ml", "role": "owner", "principals": ["key:a"]}),
        ("grants/add", {"on": "ml", "role": "read"}),
        ("grants/add", {"on": "ml", "role": "read", "principals": ["ann"]}),
        ("grants/add", {"on": "ml", "role": "read", "rights": ["read"], "principals": ["key:a"]}),
        ("grants/add", {"on": "ml", "rights": ["CreateKey"], "principals": ["key:a"]}),
        ("grants/add", {"on": "ml", "rights": ["ReplacePolicy"], "principals": ["key:a"]}),
        ("grants/add", {"on": 1, "role": "read", "principals": ["key:a"]}),
        ("grants/add", {"on": "ml..t", "role": "read", "principals": ["key:a"]}),
        ("grants/add", {"on": "ml", "role": "write", "columns": ["id"], "principals": ["key:a"]}),
        ("grants/add", {"on": "ml", "role": "read", "rows": "id = 1) OR (true", "principals": ["key:a"]}),
        ("grants/add", {"on": "ml", "role": "read", "principals": ["key:a"] * 10_001}),
        ("grants/add", {"on": "ml", "role": "read", "principals": ["key:" + "a" * (1 << 20)]}),
        ("grants/add", {"on": "ml", "role": "read", "principals": ["key:a"], "number": 1}),
        ("grants/remove", {"grant": 0}),
        ("grants/remove", {"grant": -1}),
        ("grants/remove", {"grant": 6}),
        ("grants/remove", {"grant": 10**30}),
        ("grants/remove", {"grant": "one"}),
        ("grants/remove", {"grant": True}),
        ("replace", {"toml": ""}),
        ("replace", {"toml": "x"}),
        ("replace", {"toml": "a = " + "[" * 100_000}),
        ("replace", {"toml": "a." * 100_000 + "a = 1"}),
        ("replace", {"toml": FILE + "[[" + '"\\".".' * 100_000 + "a]]"}),
        ("replace", {"toml": "x = {" + "'a' . " * 100_000 + "a = 1}"}),
        ("replace", {"toml": FILE + "[[grant]]\n"}),
        ("replace", {"toml": FILE + "\x00"}),
        ("replace", {"toml": FILE.replace('"key:root"', '"key:rot"')}),
        ("replace", {"toml": FILE.replace('role = "admin"\non = ""', f'rights = [{ALMOST}]\non = ""', 1)}),
    ],
)
def test_changes_that_are_not_valid_or_lock_the_caller_out_change_nothing(site: Site, path: str, body: Any) -> None:
    before = site.state()
    answer = site.ask(f"{POLICY}/{path}", body, if_match=site.tag)
    assert answer.status_code == 400, answer.text
    assert len(answer.content) < 3000
    assert site.state() == before
    assert site.audited("reload") == []


def test_a_large_policy_is_refused(site: Site) -> None:
    before = site.state()
    for more in ("#" * (1 << 20), "#" + "ü" * (1 << 19)):
        answer = site.ask(f"{POLICY}/replace", {"toml": FILE + more}, if_match=site.tag)
        assert (answer.status_code, "it may have 1048576" in answer.text) == (400, True)
    answer = site.ask(f"{POLICY}/grants/add", {"on": "", "role": "read", "groups": ["a" * (1 << 20)]})
    assert (answer.status_code, "it may have 1048576" in answer.text) == (400, True)
    assert site.state() == before


def test_the_last_administrator_stays(site: Site) -> None:
    site.ask(f"{POLICY}/grants/remove", {"grant": 5}, if_match=site.tag)
    answer = site.ask(f"{POLICY}/grants/remove", {"grant": 1}, if_match=site.tag)
    assert (answer.status_code, "might lock out every administrator" in answer.text) == (400, True)
    assert site.ask(KEYS).status_code == 200
    result = run("policy", "remove", site.policy, 1)
    assert (result.exit_code, "no caller can administer it" in result.stderr) == (0, True), result.output
    assert site.ask(KEYS).status_code == 404  # nothing of the catalog is visible


def test_an_invalid_file_is_shown_and_can_be_replaced(site: Site) -> None:
    site.policy.write_text(FILE + "broken")
    found = fits(site.ask(POLICY), "DescribePolicy")
    assert found["toml"] == FILE + "broken"
    assert "not a TOML file" in found["problem"]
    assert len(found["grants"]) == 5
    assert site.ask(f"{POLICY}/grants/add", BODIES["add_grant"]).status_code == 400
    assert site.ask(f"{POLICY}/replace", {"toml": FILE}, if_match=site.tag).status_code == 200
    assert "problem" not in site.ask(POLICY).json()


@pytest.mark.parametrize(
    "text",
    [
        'grants = [{role = "admin", on = "", principals = ["key:root"]}, {role = "read", on = "", groups = ["a"]}]\n',
        FILE + '[[grants]]\nrole = "read"\non = """\\\n"""\ngroups = ["""\n[[grants]]\n"""]\n[[grants]]\n'
        'role = "read"\non = ""\ngroups = ["b"]\n',
    ],
)
def test_grants_that_are_written_otherwise_are_not_cut(site: Site, text: str) -> None:
    site.policy.write_text(text)
    last = len(read_policy(site.policy).grants)
    answer = site.ask(f"{POLICY}/grants/remove", {"grant": last}, if_match=site.tag)
    assert (answer.status_code, "Replace the whole policy" in answer.text) == (400, True), answer.text
    assert site.policy.read_text() == text


def test_the_commands_change_the_same_files(tmp_path: Path) -> None:
    policy, file = tmp_path / "policy.toml", tmp_path / "keys.json"
    restricted = ["--right", "read", "--principal", "jwt:a", "--group", "g", "--column", "id", "--rows", "id = 1"]
    for arguments in (["--role", "admin", "--principal", "key:root"], ["hr.t", *restricted]):
        assert run("policy", "add", policy, *arguments).exit_code == 0, arguments
    first, second = read_policy(policy).grants
    assert (first.role, str(second.subtree)) == ("admin", "hr.t")
    assert (second.principals, second.groups) == (frozenset({"jwt:a"}), frozenset({"g"}))
    assert second.restriction is not None
    assert second.restriction.kinds == ("columns", "rows")
    assert "grant 2: read on hr.t for jwt:a, group g within" in run("policy", "show", policy).output
    before = policy.read_text()
    for wrong in (["--role", "owner", "--group", "g"], ["--role", "read"], ["--right", "CreateKey", "--group", "g"]):
        assert run("policy", "add", policy, *wrong).exit_code != 0
    assert run("policy", "remove", policy, 3).exit_code != 0
    assert policy.read_text() == before
    removed = run("policy", "remove", policy, 2)
    assert (removed.exit_code, 'rows = "id = 1"' in removed.output) == (0, True), removed.output
    assert len(read_policy(policy).grants) == 1

    key, _ = KeyFile(file).create("ann")
    shown = json.loads(run("keys", "expire", key.id, "--in", "2h", "--file", file, "--json").stdout)
    end = KeyFile(file).keys()[key.id].expires
    assert end is not None
    assert end.isoformat(timespec="seconds") == shown["expires"]
    assert timedelta(hours=1) < end - datetime.now(UTC) <= timedelta(hours=2)
    assert run("keys", "expire", "ffffffffffff", "--in", "2h", "--file", file).exit_code != 0


# -- other callers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ADMINISTRATION, ids=lambda route: str(route.operation))
def test_only_a_principal_with_every_right_on_the_whole_catalog_may_ask(site: Site, route: Route) -> None:
    before = site.state()
    for who, status in (("lead", 403), ("reader", 403), ("almost", 403), ("stranger", 404)):
        answer = site.ask_for(route, who, if_match="*")
        assert answer.status_code == status, (who, answer.text)
        assert "key:root" not in answer.text
        line = site.audited()[-1]
        assert (line["operation"], line["principal"], line["decision"]) == (route.operation_id, f"key:{who}", "refused")
    unknown = site.ask_for(route, "lk_000000000000_" + "a" * 43)
    assert unknown.status_code == 401
    assert site.state() == before
    for who in ("root", "member"):
        assert site.ask_for(route, who, if_match="*").is_success, who
        site.policy.write_text(FILE)
        (site.folder / "keys.json").write_text(before[0])


def test_every_operation_of_administrators_has_a_route() -> None:
    assert {route.operation for route in ADMINISTRATION} == set(OF_ADMINS)


def test_without_a_policy_no_caller_gives_rights(tmp_path: Path) -> None:
    with served(tmp_path, None) as site:
        before = site.file.path.read_text()
        for route in ADMINISTRATION:
            answer = site.ask_for(route, if_match="*")
            assert (answer.status_code, "no administrators" in answer.text) == (403, True), route.operation
        assert site.file.path.read_text() == before


@pytest.mark.parametrize("has_keys", [True, False])
def test_an_administrator_with_a_token_manages_what_the_server_has(tmp_path: Path, has_keys: bool) -> None:
    signer = jwk.generate_key("EC", "P-256", {"kid": "one", "use": "sig"})
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [signer.as_dict(private=False)]}))
    tokens = {"jwks": str(tmp_path / "jwks.json"), "issuer": "i", "audience": "a", "groups_claim": "groups"}
    claims = {"iss": "i", "aud": "a", "sub": "boss", "exp": int(time.time()) + 600, "groups": ["admins"]}
    bearer = {"authorization": f"Bearer {jwt.encode({'alg': 'ES256', 'kid': 'one'}, claims, signer, ['ES256'])}"}
    with served(tmp_path, has_keys=has_keys, tokens=tokens) as site, httpx.Client(headers=bearer) as client:
        answer = client.get(site.uri + KEYS)
        assert answer.status_code == (200 if has_keys else 501), answer.text
        if has_keys:
            for name in site.keys:
                assert client.post(f"{site.uri}{KEYS}/{site.id_of(name)}/revoke").status_code == 200
            assert client.get(site.uri + KEYS).json() == {"keys": []}
            site.file.path.unlink()
            assert client.get(site.uri + KEYS).json() == {"keys": []}
            assert client.post(site.uri + KEYS + "/create", json={"name": "ann"}).status_code == 201
        answer = client.post(f"{site.uri}{POLICY}/grants/remove", json={"grant": 5}, headers={"if-match": "*"})
        assert (answer.status_code, "from jwt:boss" in answer.text) == (400, True)
        answer = client.post(f"{site.uri}{POLICY}/grants/remove", json={"grant": 1}, headers={"if-match": "*"})
        assert answer.status_code == 200
        assert [each["principal"] for each in site.audited()] == ["jwt:boss"] * len(site.audited())


def test_without_authentication_there_is_no_administration(tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://") as catalog:
        settings = ServerSettings()
        security = security_of(settings, {})
        app = create_app(CatalogNamespace(catalog), settings, around=security.around, middleware=security.middleware)
        with running(app) as uri:
            for route in ADMINISTRATION:
                path = uri + route.path.replace("{key_id}", "ffffffffffff")
                answer = httpx.request(route.method, path, json=BODIES.get(route.operation, {}) or None)
                assert answer.status_code == 501, (route.operation, answer.text)


@pytest.mark.parametrize("route", [each for each in ADMINISTRATION if each.method != GET], ids=lambda each: each.path)
def test_no_answer_is_kept_for_an_idempotency_key(site: Site, route: Route) -> None:
    before = site.state()
    answer = site.ask_for(route, idempotency_key=str(uuid4()), if_match="*")
    assert answer.status_code == (200 if route.operation == "explain_decision" else 400), answer.text
    assert site.state() == before


def test_a_server_that_may_not_write_its_files_says_what_to_do(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before = site.state()

    def refuse(code: int) -> Callable[..., int]:
        real = os.open

        def opened(path: Any, flags: int, *more: Any, **named: Any) -> int:
            if flags & os.O_CREAT and "audit" not in str(path):
                raise OSError(code, os.strerror(code), str(path))
            return real(path, flags, *more, **named)

        return opened

    for code, status, said in (
        (errno.EROFS, 501, "secret of Kubernetes"),
        (errno.EACCES, 501, "cannot be changed by this process"),
        (errno.ENOSPC, 503, "No space left on device. Nothing was changed"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse(code))
            for path, body in ((f"{KEYS}/create", {"name": "ann"}), (f"{POLICY}/grants/add", BODIES["add_grant"])):
                answer = site.ask(path, body)
                assert (answer.status_code, said in answer.text) == (status, True), answer.text
    assert site.state() == before
    assert site.ask(KEYS).status_code == 200


# -- races ------------------------------------------------------------------------------------------------------------


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    barrier = Barrier(len(acts))

    def act(each: Callable[[], Any]) -> Any:
        barrier.wait()
        return each()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(act, acts))


def test_changes_of_keys_at_once_by_the_api_and_the_command_are_all_kept(site: Site) -> None:
    def by_api(number: int) -> list[str]:
        headers = {"x-api-key": site.keys["root"]}
        with httpx.Client(base_url=site.uri, headers=headers, timeout=60) as client:
            return [client.post(f"{KEYS}/create", json={"name": f"a{number}"}).json()["key"] for _ in range(20)]

    def by_command() -> list[str]:
        line = [sys.executable, "-m", "lancekeep", "keys", "create", "c", "--file", str(site.file.path)]
        return [subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()]

    made = [key for keys in at_once(*(partial(by_api, number) for number in range(4)), by_command) for key in keys]
    assert sorted(site.file.keys()) == sorted([key.split("_")[1] for key in (*made, *site.keys.values())])
    assert {site.ask(KEYS, None, key).status_code for key in made[::10]} == {404}  # valid, without a grant


def test_of_two_administrators_with_one_tag_one_changes_the_policy(site: Site) -> None:
    tag = site.tag

    def replace(number: int) -> Callable[[], Any]:
        return lambda: site.ask(f"{POLICY}/replace", {"toml": f"# {number}\n{FILE}"}, if_match=tag).status_code

    found = at_once(*map(replace, range(6)))
    assert sorted(found) == [200, *[412] * 5]
    assert site.policy.read_text() == f"# {found.index(200)}\n{FILE}"


def test_grants_that_are_added_at_once_are_all_kept(site: Site) -> None:
    def add(number: int) -> Callable[[], Any]:
        body = {"on": "ml", "role": "read", "principals": [f"key:n{number}"]}
        if number % 4 == 1:
            line = ["policy", "add", str(site.policy), "ml", "--role", "read", "--principal", f"key:n{number}"]
            whole = [sys.executable, "-m", "lancekeep", *line]
            return lambda: subprocess.run(whole, check=True, capture_output=True).returncode
        return lambda: site.ask(f"{POLICY}/grants/add", body).raise_for_status()

    at_once(*map(add, range(8)))
    added = [set(each.principals) for each in read_policy(site.policy).grants[5:]]
    assert sorted(map(str, added)) == sorted(str({f"key:n{number}"}) for number in range(8))


def test_two_administrators_that_remove_each_other_leave_one(site: Site) -> None:
    site.ask(f"{POLICY}/grants/add", {"on": "", "role": "admin", "principals": ["key:lead"]})
    both = ("root", "lead")
    ids = {who: site.id_of(who) for who in both}
    found = at_once(
        *(
            lambda who=who, other=other: site.ask(f"{KEYS}/{ids[other]}/revoke", {}, who).status_code
            for who, other in zip(both, reversed(both), strict=True)
        )
    )
    assert sorted(found)[0] == 200
    assert sorted(found)[1] in (401, 403)
    assert [site.ask(KEYS, None, who).status_code for who in both].count(200) == 1


@pytest.mark.parametrize("path", [f"{KEYS}/create", f"{POLICY}/grants/add"])
def test_an_administrator_that_was_removed_while_its_change_waited_changes_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    waits, is_locked = Event(), local_files._is_locked

    def tried(descriptor: int) -> bool:
        found = is_locked(descriptor)
        if not found:
            waits.set()
        return found

    monkeypatch.setattr(local_files, "_is_locked", tried)
    body = {f"{KEYS}/create": {"name": "ann"}}.get(path, BODIES["add_grant"])
    file = site.file.path if path.startswith(KEYS) else site.policy
    with ThreadPoolExecutor(1) as pool:
        with local_files.locked(file, "the file"):
            answer = pool.submit(site.ask, path, body, "member")
            assert waits.wait(60)
            site.policy.write_text(FILE.replace('"admins"', '"others"'))
        refused = answer.result()
    assert (refused.status_code, "no longer has the role admin" in refused.text) == (403, True), refused.text
    assert len(site.file.keys()) == len(site.keys)
    assert site.policy.read_text() == FILE.replace('"admins"', '"others"')


def test_a_lock_that_another_process_holds_is_reported(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "LOCK_SECONDS", 0.1)
    before = site.state()
    with local_files.locked(site.file.path, "the file of keys"):
        answer = site.ask(f"{KEYS}/create", {"name": "ann"})
    assert (answer.status_code, "held the lock" in answer.text) == (503, True)
    assert site.state() == before
    assert site.ask(f"{KEYS}/create", {"name": "ann"}).status_code == 201


def test_a_change_does_not_follow_its_answer_504(site: Site) -> None:
    before = site.state()
    paths = [(f"{KEYS}/create", {"name": "ann"}), (f"{POLICY}/grants/add", BODIES["add_grant"])]
    with local_files.locked(site.file.path, "the file of keys"), local_files.locked(site.policy, "the policy"):
        for path, body in paths:
            answer = site.ask(path, body, x_request_timeout="0.1")
            assert (answer.status_code, "Idempotency-Key" in answer.text) == (504, False), answer.text
    assert site.app.state.running.wait(60) == 0
    assert site.state() == before


KILLED = """
import os, signal, sys
from pathlib import Path
from lancekeep.adapters.authentication.api_keys import KeyFile
real = os.replace
def replace(*paths):
    if sys.argv[2] == "after":
        real(*paths)
    os.kill(os.getpid(), signal.SIGKILL)
os.replace = replace
KeyFile(Path(sys.argv[1])).create("ann")
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_change_that_is_killed_happened_or_did_not(site: Site, moment: str) -> None:
    """The key that no caller has seen is in the list, and an administrator revokes it."""
    line = [sys.executable, "-c", KILLED, str(site.file.path), moment]
    assert subprocess.run(line, check=False).returncode == -signal.SIGKILL
    listed = site.ask(KEYS).json()["keys"]
    new = [each["id"] for each in listed if each["principal"] == "key:ann"]
    assert len(new) == (moment == "after")
    assert len(listed) == len(site.keys) + len(new)
    for key in new:
        assert site.ask(f"{KEYS}/{key}/revoke", {}).status_code == 200
    assert site.ask(f"{KEYS}/create", {"name": "ann"}).status_code == 201


def test_a_change_after_a_killed_one_removes_what_it_left(site: Site) -> None:
    for path in (site.file.path, site.policy):
        path.with_name(f".{path.name}.new").write_text("half")
    site.ask(f"{KEYS}/create", {"name": "ann"}).raise_for_status()
    site.ask(f"{POLICY}/grants/add", BODIES["add_grant"]).raise_for_status()
    names = {path.name for path in site.folder.iterdir()}
    assert names == {"keys.json", ".keys.json.lock", "policy.toml", ".policy.toml.lock", "audit.jsonl", "lake"}


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_file_keeps_its_mode_and_a_link_to_it(site: Site) -> None:
    apart = site.folder / "apart"
    apart.mkdir()
    for path in (site.file.path, site.policy):
        path.rename(apart / path.name)
        path.symlink_to(apart / path.name)
    (apart / "policy.toml").chmod(0o640)
    key = site.ask(f"{KEYS}/create", {"name": "ann"}).json()["key"]
    site.ask(f"{POLICY}/grants/add", {"on": "", "role": "read", "principals": ["key:ann"]}).raise_for_status()
    assert site.reads(key) == 200
    assert all(path.is_symlink() for path in (site.file.path, site.policy))
    assert [(apart / name).stat().st_mode & 0o777 for name in ("keys.json", "policy.toml")] == [0o600, 0o640]


def test_a_file_that_the_server_may_not_give_back_stays_readable_to_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files belong to another user: the key file becomes private, and the policy keeps its mode."""
    file, policy = tmp_path / "keys.json", tmp_path / "policy.toml"
    KeyFile(file).create("ada")
    policy.write_text(FILE)
    for path, mode in ((file, 0o640), (policy, 0o644)):
        path.chmod(mode)
    real = os.stat

    def of_another(path: Any, **named: Any) -> os.stat_result:
        found = real(path, **named)
        owned = path in (file, policy)
        return (
            found if not owned else os.stat_result((*found[:4], 12345, *found[5:]), {"st_mtime_ns": found.st_mtime_ns})
        )

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "stat", of_another)
    monkeypatch.setattr(os, "fchown", refuse)
    if os.geteuid() == 0:  # a group may read a file of root, which is a mounted secret
        KeyFile(file).create("bob")
    PolicyEdits(policy).remove(2)
    monkeypatch.undo()
    if os.geteuid() == 0:
        assert (file.stat().st_mode & 0o777, len(KeyFile(file).keys())) == (0o600, 2)
    assert policy.stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which may give files away")
def test_a_command_of_root_leaves_the_files_to_the_server(tmp_path: Path) -> None:
    file, policy = tmp_path / "keys.json", tmp_path / "policy.toml"
    KeyFile(file).create("ada")
    policy.write_text(FILE)
    for path in (file, policy):
        os.chown(path, 12345, 12346)
    assert run("keys", "create", "bob", "--file", file).exit_code == 0
    assert run("policy", "remove", policy, 2).exit_code == 0
    for path in (file, policy, tmp_path / ".keys.json.lock", tmp_path / ".policy.toml.lock"):
        assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12346), path
    assert len(KeyFile(file).keys()) == 2


def test_each_change_has_a_later_time_so_servers_read_it(site: Site) -> None:
    """A file system reuses inodes, and two keys of a name have one size; the clock may stand still or go back."""
    later = time.time_ns() + 3600 * 10**9
    for path in (site.file.path, site.policy):
        os.utime(path, ns=(later, later))
    for _ in range(3):
        times = [path.stat().st_mtime_ns for path in (site.file.path, site.policy)]
        made = site.ask(f"{KEYS}/create", {"name": "ann"}).json()
        site.ask(f"{POLICY}/grants/add", {"on": "", "role": "read", "principals": ["key:ann"]}).raise_for_status()
        assert site.reads(made["key"]) == 200
        assert [path.stat().st_mtime_ns for path in (site.file.path, site.policy)] == [each + 1 for each in times]


@pytest.mark.parametrize("content", ["{", "[" * 100_000], ids=["cut off", "nested"])
def test_a_damaged_file_of_keys_is_the_servers_fault(site: Site, content: str) -> None:
    whole = site.file.path.read_text()
    site.file.path.write_text(content)
    for path, body in (("", None), ("/create", {"name": "ann"})):
        answer = site.ask(KEYS + path, body)  # the last valid keys stay in force
        assert (answer.status_code, "Repair the file" in answer.text) == (503, True), answer.text
    assert site.file.path.read_text() == content
    site.file.path.write_text(whole)
    assert site.ask(KEYS).status_code == 200


# -- processes and catalogs -------------------------------------------------------------------------------------------


def test_a_change_counts_at_once_for_every_worker(tmp_path: Path) -> None:
    key = KeyFile(tmp_path / "keys.json").create("root")[1]
    (tmp_path / "policy.toml").write_text(FILE)
    line = [sys.executable, "-m", "lancekeep", "serve", f"{tmp_path}/lake", "--port", "0", "--workers", "2"]
    line += ["--commit-store", f"sqlite://{tmp_path}/commits.db", "--keys", f"{tmp_path}/keys.json"]
    line += ["--policy", f"{tmp_path}/policy.toml", "--audit", f"{tmp_path}/audit.jsonl"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            site = Site(process.stdout.readline().split()[-1], tmp_path, {"root": key})

            def statuses(key: str) -> set[int]:
                """Return what many connections get, which both workers accept."""
                return set(at_once(*[lambda: site.ask("/v1/namespace/$/list", None, key).status_code] * 12))

            for _ in range(2):
                made = site.ask(f"{KEYS}/create", {"name": "ann"}).json()
                assert statuses(made["key"]) == {404}
                grant = site.ask(f"{POLICY}/grants/add", {"on": "", "role": "read", "principals": ["key:ann"]}).json()
                assert statuses(made["key"]) == {200}
                body = {"grant": grant["grant"]["grant"]}
                assert site.ask(f"{POLICY}/grants/remove", body, if_match=site.tag).status_code == 200
                assert statuses(made["key"]) == {404}
                site.ask(f"{KEYS}/{made['id']}/revoke", {})
                assert statuses(made["key"]) == {401}
        finally:
            process.kill()


def test_keys_of_several_catalogs_need_an_administrator_of_each(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    keys = {name: file.create(name)[1] for name in ("root", "half")}
    grant = '[[grants]]\nrole = "admin"\non = ""\nprincipals = ["key:{}"]\n'
    (tmp_path / "prod.toml").write_text(grant.format("root"))
    (tmp_path / "lab.toml").write_text(grant.format("root") + grant.format("half"))
    (tmp_path / "lancekeep.toml").write_text(
        f'[server]\nkeys = "{file.path}"\naudit = "{tmp_path}/audit.jsonl"\n'
        + "".join(
            f'[catalogs.{name}]\nroot = "{tmp_path}/{name}"\ncommit_store = "conditional-put://"\n'
            f'[catalogs.{name}.server]\npolicy = "{tmp_path}/{name}.toml"\n'
            for name in ("prod", "lab")
        )
    )
    tasks = SeveralTasks.configured({}, environment={"LANCEKEEP_CONFIG": str(tmp_path / "lancekeep.toml")})
    with served_by(tasks) as (app, _, _), running(app, tasks.settings) as uri:
        lab, prod = (Site(f"{uri}/catalogs/{name}", tmp_path, keys) for name in ("lab", "prod"))
        before = file.path.read_text()
        for path, body in (
            ("", None),
            ("/create", {"name": "root"}),
            (f"/{keys['root'].split('_')[1]}/rotate", {}),
            (f"/{keys['root'].split('_')[1]}/revoke", {}),
        ):
            answer = lab.ask(KEYS + path, body, "half")
            assert (answer.status_code, "in all catalogs" in answer.text) == (403, True), answer.text
        assert prod.ask(KEYS, None, "half").status_code == 404
        assert file.path.read_text() == before
        assert lab.ask(f"{POLICY}/grants/add", {"on": "", "role": "read", "groups": ["g"]}, "half").status_code == 201
        assert len(prod.ask(POLICY).json()["grants"]) == 1
        assert len(lab.ask(POLICY).json()["grants"]) == 3
        made = lab.ask(f"{KEYS}/create", {"name": "half"}).json()["key"]
        assert lab.ask(POLICY, None, made).status_code == 200
        (tmp_path / "prod.toml").write_text("broken")
        answer = lab.ask(f"{KEYS}/create", {"name": "ann"})
        assert (answer.status_code, "Repair the file" in answer.text) == (503, True)
        assert lab.audited()[-1]["catalog"] == "lab"
