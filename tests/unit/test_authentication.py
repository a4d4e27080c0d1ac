"""API keys and bearer tokens."""

from __future__ import annotations

import base64
import hmac
import inspect
import itertools
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from click.testing import CliRunner
from joserfc import jwk, jwt
from joserfc.jwk import KeySet

import lancekeep
from lancekeep.adapters.authentication import api_keys
from lancekeep.adapters.authentication.api_keys import ApiKeys, KeyFile
from lancekeep.adapters.authentication.tokens import ALGORITHMS, Issuer, Tokens
from lancekeep.domain.authorization import Principal
from lancekeep.domain.errors import InvalidInput, NotFound, StoreUnavailable
from lancekeep.entrypoints.cli import lancekeep as command

NOW = 1_800_000_000
ISSUER, AUDIENCE = "https://issuer.example", "lancekeep"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


# -- API keys --------------------------------------------------------------------------------------------------------


def test_a_key_is_stored_as_a_hash_in_a_private_file(file: Path) -> None:
    _, whole = KeyFile(file).create("ada", ("engineers",))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert whole.split("_", 2)[2] not in file.read_text()
    assert ApiKeys(file).authenticate(whole) == Principal("key:ada", frozenset({"engineers"}))


def test_a_wrong_key_is_refused(file: Path) -> None:
    key, whole = KeyFile(file).create("ada")
    keys = ApiKeys(file)
    wrong = whole[:-1] + ("a" if whole[-1] != "a" else "b")
    other = f"lk_{'0' * 12}_{whole.rpartition('_')[2]}"
    for each in (wrong, other, "", key.id, key.digest, whole + "\n", whole.upper(), "é" * 43):
        assert keys.authenticate(each) is None


def test_an_expired_key_is_refused(file: Path) -> None:
    now = datetime.now(UTC)
    _, whole = KeyFile(file).create("ada", expires=now + timedelta(days=1))
    keys = ApiKeys(file)
    assert keys.authenticate(whole, now) is not None
    assert keys.authenticate(whole, now + timedelta(days=1)) is None


def test_a_revoked_key_is_refused_by_a_running_server(file: Path) -> None:
    key, whole = KeyFile(file).create("ada")
    keys = ApiKeys(file)
    _, second = KeyFile(file).create("ada")
    assert keys.authenticate(second) is not None
    KeyFile(file).revoke(key.id)
    assert keys.authenticate(whole) is None
    assert keys.authenticate(second) is not None
    with pytest.raises(NotFound):
        KeyFile(file).revoke(key.id)


def test_a_damaged_key_file_keeps_the_last_keys_and_is_reported(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, whole = KeyFile(file).create("ada")
    keys = ApiKeys(file)
    file.write_text("{")
    assert keys.authenticate(whole) is not None
    assert "stay in force" in caplog.text
    file.unlink()
    assert keys.authenticate(whole) is None


def test_a_key_file_that_others_may_read_is_refused(file: Path) -> None:
    KeyFile(file).create("ada")
    owners = (0, 10001) if os.getuid() == 0 else (os.getuid(),)
    for owner, mode in itertools.product(owners, (0o600, 0o640, 0o604, 0o660)):
        os.chown(file, owner, -1)
        file.chmod(mode)
        read_by_others = mode not in (0o600, 0o600 if owner else 0o640)  # a mounted secret is root's, read by a group
        with pytest.raises(InvalidInput, match="chmod 600") if read_by_others else nullcontext():
            ApiKeys(file)


def test_a_rotated_key_and_its_successor_are_valid_until_the_overlap_is_over(file: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    key, whole = KeyFile(file).create("ada", ("engineers",), now + timedelta(days=90), now)
    later = now + timedelta(days=80)
    old, successor, new = KeyFile(file).rotate(key.id, timedelta(days=7), later)
    assert (old.expires, successor.expires) == (later + timedelta(days=7), later + timedelta(days=90))
    keys = ApiKeys(file)
    for moment, valid in ((later, [True, True]), (later + timedelta(days=8), [False, True])):
        assert [keys.authenticate(each, moment) == key.principal for each in (whole, new)] == valid
    again, _, _ = KeyFile(file).rotate(successor.id, timedelta(days=365), later)
    assert again.expires == successor.expires, "an overlap does not prolong a key"
    with pytest.raises(NotFound, match="has no key"):
        KeyFile(file).rotate("0" * 12, timedelta(days=7))
    with pytest.raises(InvalidInput, match="has expired"):
        KeyFile(file).rotate(key.id, timedelta(days=7), later + timedelta(days=8))


def test_keys_are_compared_as_hashes_in_constant_time() -> None:
    source = inspect.getsource(ApiKeys.authenticate)
    assert "hmac.compare_digest(_digest(credential)" in source
    assert "==" not in source
    assert len(api_keys._NO_HASH) == 64  # an unknown id is compared, too


def test_the_command_shows_a_key_once(file: Path) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(command, ["keys", *arguments, "--file", str(file)], obj=lancekeep)
        assert result.exit_code == 0, result.output
        return result.stdout

    created = json.loads(run("create", "ada", "--group", "engineers", "--expires", "90d", "--json"))
    secret = created["key"].split("_", 2)[2]
    assert ApiKeys(file).authenticate(created["key"]) is not None
    listed = run("list", "--json")
    assert json.loads(listed) == [{name: created[name] for name in created if name != "key"}]
    assert secret not in listed + run("list") + run("revoke", created["id"])
    assert json.loads(run("list", "--json")) == []


# -- bearer tokens ---------------------------------------------------------------------------------------------------


class IssuerOfTests:
    """An issuer with a key, a counter of reads, and an outage."""

    def __init__(self) -> None:
        self.keys: list[jwk.Key] = [jwk.generate_key("RSA", 2048, {"kid": "one", "use": "sig"})]
        self.reads = 0
        self.away = False
        self.time = 0.0

    def pem(self) -> bytes:
        first = self.keys[0]
        assert isinstance(first, jwk.RSAKey)
        return first.as_pem(private=False)

    def read(self, place: str) -> bytes:
        self.reads += 1
        if self.away:
            raise OSError("no answer")
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys]}).encode()

    def tokens(self, **settings: Any) -> Tokens:
        issuer = Issuer(jwks="https://issuer.example/jwks", issuer=ISSUER, audience=AUDIENCE, **settings)
        return Tokens(issuer, read=self.read, clock=lambda: self.time, now=lambda: NOW)

    def token(
        self, algorithm: str = "RS256", key: Any = None, header: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": NOW + 60, **claims}
        payload = {name: value for name, value in given.items() if value is not None}
        signer = key or self.keys[-1]
        head = {"alg": algorithm, "kid": self.keys[-1].kid, **(header or {})}
        return jwt.encode(head, payload, signer, algorithms=[algorithm])


@pytest.fixture
def issuer() -> IssuerOfTests:
    return IssuerOfTests()


def test_a_valid_token_names_its_principal(issuer: IssuerOfTests) -> None:
    assert issuer.tokens().authenticate(issuer.token(groups=["engineers"])) == Principal("jwt:ada")
    assert issuer.tokens(groups_claim="groups").authenticate(issuer.token(groups=["engineers"])) == Principal(
        "jwt:ada", frozenset({"engineers"})
    )
    assert issuer.tokens().authenticate(issuer.token(aud=["other", AUDIENCE])) is not None


KEYS: dict[str, Any] = {"RS": ("RSA", 2048), "PS": ("RSA", 2048), "Ed": ("OKP", "Ed25519")}
CURVES: dict[str, Any] = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_asymmetric_algorithm_is_accepted(issuer: IssuerOfTests, algorithm: str) -> None:
    kind: Any
    size: Any
    kind, size = KEYS.get(algorithm[:2]) or ("EC", CURVES[algorithm])
    issuer.keys.append(jwk.generate_key(kind, size, {"kid": "two"}))
    assert issuer.tokens().authenticate(issuer.token(algorithm)) == Principal("jwt:ada")


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512", "none"])
def test_the_algorithms_are_refused_even_if_the_key_set_permits_them(
    issuer: IssuerOfTests, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of algorithms protects on its own; that symmetric keys are left out is a second protection."""
    secret = jwk.OctKey.generate_key(512, {"kid": "secret"})
    monkeypatch.setattr("lancekeep.adapters.authentication.tokens.parse_keys", lambda content: KeySet([secret]))
    token = issuer.token(algorithm, secret, {"kid": "secret"})
    jwt.decode(token, secret, algorithms=[algorithm])  # the token is otherwise valid
    assert issuer.tokens().authenticate(token) is None


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW - 31},
        {"exp": None},
        {"exp": "tomorrow"},
        {"nbf": NOW + 31},
        {"iat": NOW + 31},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"sub": None},
        {"sub": ""},
    ],
)
def test_a_token_with_wrong_claims_is_refused(issuer: IssuerOfTests, claims: dict[str, Any]) -> None:
    assert issuer.tokens().authenticate(issuer.token(**claims)) is None


def test_clocks_may_differ_by_the_leeway(issuer: IssuerOfTests) -> None:
    assert issuer.tokens().authenticate(issuer.token(exp=NOW - 29, nbf=NOW + 29)) is not None


def signed_by_hand(issuer: IssuerOfTests, header: dict[str, Any], secret: bytes) -> str:
    """Return a valid token with another header, signed by HMAC, as no library signs it."""
    payload = issuer.token().split(".")[1]
    signed = f"{encoded(json.dumps(header).encode())}.{payload}"
    return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), 'sha256'))}"


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def test_a_public_key_does_not_serve_as_a_secret(issuer: IssuerOfTests) -> None:
    """Algorithm confusion: HS256 with the bytes of the public key."""
    tokens = issuer.tokens()
    for content in (issuer.pem(), issuer.read("")):
        for secret in (content, content.strip()):
            assert tokens.authenticate(signed_by_hand(issuer, {"alg": "HS256", "kid": "one"}, secret)) is None


def test_a_token_without_signature_is_refused(issuer: IssuerOfTests) -> None:
    head, payload, _ = issuer.token().split(".")
    tokens = issuer.tokens()
    for name in ("none", "None", "NONE", "nOnE"):
        forged = signed_by_hand(issuer, {"alg": name, "kid": "one"}, b"")
        assert [tokens.authenticate(each) for each in (forged, forged.rpartition(".")[0] + ".")] == [None, None]
    assert tokens.authenticate(f"{head}.{payload}.") is None


def test_a_key_in_the_header_of_a_token_is_ignored(issuer: IssuerOfTests) -> None:
    mine = jwk.generate_key("RSA", 2048, {"kid": "one"})
    embedded = issuer.token(key=mine, header={"jwk": mine.as_dict(private=False)})
    linked = issuer.token(key=mine, header={"jku": "https://evil.example/jwks"})
    tokens = issuer.tokens()
    assert [tokens.authenticate(each) for each in (embedded, linked, issuer.token(key=mine))] == [None] * 3


def test_malformed_tokens_are_refused(issuer: IssuerOfTests) -> None:
    tokens, valid = issuer.tokens(), issuer.token()
    for each in ("", ".", "..", "a.b.c", valid + ".x.y", valid[:-4], "é.é.é", "\x00", "[" * 50_000, "e30.e30.e30"):
        assert tokens.authenticate(each) is None


def test_an_unknown_key_id_reads_the_keys_once_per_interval(issuer: IssuerOfTests) -> None:
    tokens = issuer.tokens()
    assert tokens.authenticate(issuer.token()) is not None
    issuer.keys.append(jwk.generate_key("EC", "P-256", {"kid": "two"}))
    rotated = issuer.token("ES256")
    assert tokens.authenticate(rotated) is None  # the interval is not over
    issuer.time = 30.0
    assert tokens.authenticate(rotated) is not None
    for attempt in range(5):
        assert tokens.authenticate(issuer.token("ES256", header={"kid": f"fabricated-{attempt}"})) is None
    assert issuer.reads == 2


def test_key_set_that_is_being_read_delays_no_token_with_a_known_key() -> None:
    reading, released = Event(), Event()

    class SlowIssuer(IssuerOfTests):
        def read(self, place: str) -> bytes:
            if self.reads:  # the first read is at once
                reading.set()
                assert released.wait(60)
            return super().read(place)

    issuer = SlowIssuer()
    tokens = issuer.tokens()
    assert tokens.authenticate(issuer.token()) is not None
    issuer.time = 31.0
    with ThreadPoolExecutor(1) as pool:
        unknown = pool.submit(tokens.authenticate, issuer.token(header={"kid": "new"}))
        assert reading.wait(60)
        assert tokens.authenticate(issuer.token()) is not None
        with pytest.raises(StoreUnavailable, match="are being read"):
            tokens.authenticate(issuer.token(header={"kid": "other"}))
        released.set()
        assert unknown.result() is None


def test_an_outage_keeps_the_keys_for_a_bounded_time(issuer: IssuerOfTests) -> None:
    tokens = issuer.tokens()
    assert tokens.authenticate(issuer.token()) is not None
    issuer.away = True
    issuer.time = 3600.0
    assert tokens.authenticate(issuer.token()) is not None
    issuer.time = 3601.0
    with pytest.raises(StoreUnavailable):
        tokens.authenticate(issuer.token())


def test_symmetric_keys_of_a_key_set_are_left_out(issuer: IssuerOfTests) -> None:
    secret = jwk.OctKey.generate_key(256, {"kid": "secret"})

    def with_secret(place: str) -> bytes:
        keys = [issuer.keys[0].as_dict(private=False), secret.as_dict(private=True)]
        return json.dumps({"keys": keys}).encode()

    tokens = Tokens(
        Issuer(jwks="https://issuer.example/jwks", issuer=ISSUER, audience=AUDIENCE), read=with_secret, now=lambda: NOW
    )
    assert tokens.authenticate(issuer.token("HS256", secret, {"kid": "secret"})) is None
    assert tokens.authenticate(issuer.token()) is not None


@pytest.mark.parametrize(
    "change",
    [{"jwks": "http://issuer.example/jwks"}, {"jwks": "https://u:p@issuer.example/"}, {"issuer": ""}, {"leeway": 900}],
)
def test_unsafe_settings_of_an_issuer_are_refused(change: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"jwks": "https://issuer.example/jwks", "issuer": ISSUER, "audience": AUDIENCE}
    with pytest.raises(InvalidInput):
        Tokens(Issuer(**settings | change))
