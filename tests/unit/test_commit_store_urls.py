"""URLs of commit stores: accepted forms, canonical forms, and refusals."""

from __future__ import annotations

import builtins
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.domain.errors import InvalidInput, MissingExtra

OBJECTS = MemoryObjectStore()


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("memory://lake", "memory://lake"),
        ("MEMORY://Lake", "memory://Lake"),
        ("file:///var/commits", "file:///var/commits"),
        ("file:///var/commits/?fsync=false", "file:///var/commits"),
        ("file://localhost/var//commits", "file:///var/commits"),
        ("file:///var/a%20b/../c%25", "file:///var/c%25"),
        ("sqlite:///var/commits.db?synchronous=normal&timeout=2.5", "sqlite:///var/commits.db"),
        ("sqlite:////var/commits.db", "sqlite:///var/commits.db"),
        ("redis://Cache.Example", "redis://cache.example:6379/0"),
        ("redis://ada:hunter2@cache:6379/", "redis://cache:6379/0"),
        ("redis://:hunter2@cache/7?cluster=false", "redis://cache:6379/7"),
        ("rediss://cache:7000/1?ssl_check_hostname=false", "rediss://cache:7000/1"),
        ("redis://[::1]:6380", "redis://[::1]:6380/0"),
        ("redis+sentinel://b,a:1/rows", "redis+sentinel://a:1,b:26379/rows/0"),
        ("redis+sentinel://ada:hunter2@A:1/rows/3?sentinel_password=x", "redis+sentinel://a:1/rows/3"),
        ("postgresql://ada:hunter2@DB/lake?sslmode=require", "postgresql://db:5432/lake"),
        ("postgresql://b,a:1/my%2Flake?schema=lancekeep", "postgresql://a:1,b:5432/my%2Flake"),
        ("postgresql://[::1]/lake?schema=prod&user=ada&password=hunter2", "postgresql://[::1]:5432/lake?schema=prod"),
        ("postgresql:///lake?host=/var/run/postgresql&user=ada", "postgresql:///lake?host=/var/run/postgresql"),
        ("postgresql:///?service=lake", "postgresql:///?service=lake"),
        ("dynamodb://Rows?region=eu-west-1", "dynamodb://Rows?region=eu-west-1"),
        ("dynamodb://Rows", "dynamodb://Rows?region=ap-south-1"),
        (
            "dynamodb://Rows?shared_with_native=true&endpoint_url=http://LOCALHOST/&region=eu-west-1",
            "dynamodb://Rows?region=eu-west-1&endpoint_url=http://localhost:80&shared_with_native=true",
        ),
        (
            "dynamodb://Rows?shared_with_native=false&region=eu-west-1&aws_access_key_id=a&aws_secret_access_key=hunter2",
            "dynamodb://Rows?region=eu-west-1",
        ),
        ("conditional-put://", "conditional-put://"),
    ],
)
def test_equivalent_urls_have_one_canonical_form(monkeypatch: pytest.MonkeyPatch, url: str, canonical: str) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "ap-south-1")
    for equivalent in (url, canonical):
        store = open_commit_store(equivalent, {}, OBJECTS)
        assert store.url == canonical
        assert "hunter2" not in repr(store)
        store.close()


def test_symbolic_links_to_a_path_have_one_canonical_url(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for scheme in ("file", "sqlite"):
        stores = [open_commit_store(f"{scheme}://{tmp_path}/{name}/x", {}, OBJECTS) for name in ("link", "real")]
        assert stores[0].url == stores[1].url


def test_options_are_accepted_in_the_url_and_as_arguments(tmp_path: Path) -> None:
    for url, options in ((f"file://{tmp_path}?fsync=false", {}), (f"file://{tmp_path}", {"fsync": "false"})):
        assert open_commit_store(url, options, OBJECTS).guarantees.remembers is False
    assert open_commit_store(f"file://{tmp_path}", {}, OBJECTS).guarantees.remembers is True


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("", {}, "without a scheme"),
        ("/var/commits.db", {}, "expected the URL of a commit store, such as sqlite:///"),
        ("sqlit:///x.db", {}, r"unknown commit store sqlit:// \(did you mean 'sqlite'\?\); available are memory://"),
        ("zookeeper://x", {}, r"unknown commit store zookeeper://; available are"),
        ("file:///x?fsnc=true", {}, r"unknown option 'fsnc' \(did you mean 'fsync'\?\); known are fsync, trust_rows"),
        ("memory://x", {"fsync": "true"}, "memory://x: unknown option 'fsync'; known are trust_rows"),
        ("sqlite:///x.db", {"synchronus": "full"}, "did you mean 'synchronous'"),
        ("file:///x?fsync=maybe", {}, "option fsync is 'maybe'; expected true or false"),
        ("file:///x?fsync=true", {"fsync": "true"}, "the option 'fsync' is set twice"),
        ("file:///x?fsync=true&fsync=true", {}, "the option 'fsync' is set twice"),
        ("file:///x?fsync", {}, "not a valid URL"),
        ("file:///x#y", {}, "a fragment"),
        ("file:///x%00y", {}, "NUL"),
        ("file://commits", {}, "absolute path after three slashes, such as file://" + quote(os.getcwd()) + "/commits"),
        ("sqlite://some/commits.db", {}, f"such as sqlite://{quote(os.getcwd())}/some/commits.db"),
        ("sqlite:///", {}, "absolute path"),
        ("sqlite://:memory:", {}, "not a valid URL"),
        ("sqlite:///x.db?synchronous=off", {}, "expected normal or full"),
        ("sqlite:///x.db?timeout=soon", {}, "number of seconds"),
        ("sqlite:///x.db?timeout=-1", {}, "number of seconds"),
        ("sqlite:///x.db?timeout=inf", {}, "number of seconds"),
        ("memory://", {}, "one name"),
        ("memory://a/b", {}, "one name"),
        ("redis://", {}, r"expected redis://HOST\[:PORT\]\[/DATABASE\]"),
        ("redis://host/db", {}, "a number as the database"),
        ("redis://host:port", {}, "not a valid URL"),
        ("redis://host:99999", {}, "not a valid URL"),
        ("redis://host/1?cluster=true", {}, "database 0 only"),
        ("redis://a,b", {}, r"Several are for Sentinel: redis\+sentinel://"),
        ("redis+sentinel://a:1", {}, r"expected redis\+sentinel://HOST\[:PORT\],HOST\[:PORT\]/SERVICE"),
        ("redis+sentinel://a:1,/rows", {}, "several are separated by commas"),
        ("redis+sentinel://a:x/rows", {}, "not a valid URL"),
        ("redis+sentinel://a/rows?cluster=true", {}, "omit cluster=true"),
        ("redis://a?sentinel_password=x", {}, "is for Sentinel"),
        ("redis://:hunter2@host", {"password": "hunter2"}, "the password is set twice"),
        ("redis://host?ssl_ca_certs=/x", {}, "write rediss://"),
        ("redis://host?remembers=true", {}, "unknown option 'remembers'"),
        ("dynamodb://", {}, "one name"),
        ("dynamodb://a b?region=x", {}, "3 to 255 letters"),
        ("dynamodb://Rows", {}, "the region is missing"),
        ("dynamodb://Rows?region=eu-west-1&endpoint_url=localhost:8000", {}, "http"),
        ("dynamodb://Rows?region=eu-west-1&endpoint_url=http://ada:hunter2@localhost", {}, "without user and password"),
        ("dynamodb://Rows?region=eu-west-1&endpoint_url=http://localhost:hunter2", {}, "endpoint_url"),
        ("dynamodb://Rows?region=eu west", {}, "region"),
        ("dynamodb://Rows?region=eu-west-1", {"aws_secret_access_key": "hunter2"}, "must be set together"),
        ("dynamodb://Rows?region=eu-west-1", {"aws_session_token": "hunter2"}, "must be set together"),
        ("conditional-put://bucket", {}, "without host and path"),
    ],
)
def test_invalid_commit_store_url_is_refused(
    monkeypatch: pytest.MonkeyPatch, url: str, options: Mapping[str, str], message: str
) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidInput, match=message) as caught:
        open_commit_store(url, options, OBJECTS)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    ["redis://ada:hunter2@host:port", "redis://ada:hunter2@host?x", "rediss://ada:hunter2@[::1", "x://a:hunter2@h"],
)
def test_error_for_an_invalid_url_omits_the_password(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_commit_store(url, {}, OBJECTS)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("url", "driver", "hint"),
    [
        ("redis://host", "redis", r"pip install 'lancekeep\[redis\]'"),
        ("dynamodb://Rows?region=eu-west-1", "boto3", r"pip install 'lancekeep\[dynamodb\]'"),
    ],
)
def test_missing_driver_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, url: str, driver: str, hint: str
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == driver or name.startswith("lancekeep.adapters.commit_stores."):
            monkeypatch.delitem(sys.modules, name)
    original = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == driver:
            raise ModuleNotFoundError(f"No module named {driver!r}", name=driver)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=hint):
        open_commit_store(url, {}, OBJECTS)
    open_commit_store("memory://x", {}, OBJECTS)  # the others need no driver
