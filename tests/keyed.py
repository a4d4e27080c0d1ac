"""Requests with idempotency keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

from deployments import Deployment
from faults import Faulty

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.rows.recorded_keys import requests_directory


def connect(at: Deployment) -> lancekeep.Catalog:
    return lancekeep.connect(at.root, commit_store=at.commit_store or None, storage_options=at.storage_options)


def at_manifests(catalog: lancekeep.Catalog, act: Callable[[], tuple[str, BaseException] | None]) -> None:
    """Call ``act`` before each creation of a final manifest of a version of the table."""
    commits = directory_of(catalog).versions.commits
    objects = commits.objects

    class Watched(Faulty):
        def __getattr__(self, name: str) -> Any:
            value = getattr(objects, name)
            if name not in ("put_if_absent", "copy_if_absent"):
                return value

            def call(*arguments: Any) -> Any:
                fate = act() if any("_versions/" in str(each) for each in arguments) else None
                if fate and fate[0] == "before":
                    raise fate[1]
                result = value(*arguments)
                if fate:
                    raise fate[1]
                return result

            return call

    commits.objects = Watched(objects)


def new_key() -> str:
    return str(uuid4())


def key_of(number: int) -> str:
    return str(uuid5(NAMESPACE_URL, str(number)))


def names_of_records(at: Deployment) -> list[str]:
    objects, directory = directory_of(connect(at)).places.objects, requests_directory(directory_of(connect(at)).places)
    return [info.key[len(directory) :].partition("/")[2] for info in objects.list(directory) if "/keys-" in info.key]
