"""The manifest store contract, for every adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployments import bucket, s3_options

from contracts.manifest_store import ManifestStoreContract
from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.adapters.manifest_stores.memory import MemoryManifestStore
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.ports.manifest_store import ManifestStore


def lance_table(root: str, options: dict[str, str]) -> LanceManifestStore:
    objects, key = open_object_store(root, options)
    return LanceManifestStore(objects, f"{key}/__manifest")


class TestMemory(ManifestStoreContract):
    @pytest.fixture
    def store(self) -> ManifestStore:
        return MemoryManifestStore()


class TestLanceTableOnLocalFiles(ManifestStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ManifestStore:
        return lance_table(str(tmp_path), {})

    @pytest.fixture
    def other(self, tmp_path: Path, store: ManifestStore) -> ManifestStore:
        return lance_table(str(tmp_path), {})

    def test_of_racing_creators_of_the_catalog_itself_one_wins(self, tmp_path: Path) -> None:
        for number in range(20):
            doors: list[ManifestStore] = [lance_table(str(tmp_path / str(number)), {}) for _ in range(4)]
            self._race(doors, "first")
            assert doors[0].view().version == 1


class TestLanceTableOnS3(ManifestStoreContract):
    @pytest.fixture
    def root(self, moto_endpoint: str) -> str:
        return f"s3://{bucket(moto_endpoint)}/lake"

    @pytest.fixture
    def store(self, root: str, moto_endpoint: str) -> ManifestStore:
        return lance_table(root, s3_options(moto_endpoint))

    @pytest.fixture
    def other(self, root: str, moto_endpoint: str, store: ManifestStore) -> ManifestStore:
        return lance_table(root, s3_options(moto_endpoint))
