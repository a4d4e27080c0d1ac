"""The test that ``pytest --pyargs lancekeep.testing`` collects."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import lance_namespace
import pytest

from lancekeep.testing.behaviours import Capability, Open
from lancekeep.testing.suite import NamespaceBehaviours


class TestNamespace(NamespaceBehaviours):
    def offered(self, config: pytest.Config) -> Collection[Capability]:
        if not config.getoption("--lance-namespace"):
            raise pytest.UsageError("name the namespace to try: --lance-namespace lancekeep.DirectoryNamespace")
        without = [name for name in config.getoption("--lance-namespace-without").split(",") if name]
        try:
            return set(Capability).difference(map(Capability, without))
        except ValueError as error:
            raise pytest.UsageError(f"--lance-namespace-without: {error}; choose {', '.join(Capability)}") from error

    @pytest.fixture
    def namespace_factory(self, request: pytest.FixtureRequest, tmp_path: Path) -> Open:
        given = dict(text.partition("=")[::2] for text in request.config.getoption("--lance-namespace-property"))
        place = str(tmp_path / "place")
        properties = {name: value.replace("{place}", place) for name, value in {"root": "{place}", **given}.items()}
        return lambda: lance_namespace.connect(request.config.getoption("--lance-namespace"), properties)
