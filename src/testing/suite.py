"""The behaviours as pytest tests: subclass `NamespaceBehaviours`."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import pytest

from lancekeep.testing.behaviours import BEHAVIOURS, Behaviour, Capability, Contents, Open, Outcome


class NamespaceBehaviours:
    """One test per behaviour that ``capabilities`` allow.

    A subclass provides the fixture ``namespace_factory``.

    It may also provide ``namespace_contents``: a function that returns the content of the place, to check that reads
    write nothing.
    """

    capabilities: ClassVar[Collection[Capability]] = tuple(Capability)

    @pytest.fixture
    def namespace_factory(self) -> Open:
        raise NotImplementedError("override the fixture namespace_factory, which opens the namespace on an empty place")

    @pytest.fixture
    def namespace_contents(self) -> Contents | None:
        return None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "behaviour" in metafunc.fixturenames:
            offered = [each for each in BEHAVIOURS if each.needs.issubset(self.offered(metafunc.config))]
            metafunc.parametrize("behaviour", offered, ids=[each.id for each in offered])

    def offered(self, config: pytest.Config) -> Collection[Capability]:
        """Return the capabilities to test."""
        return self.capabilities

    def test_behaviour(
        self, behaviour: Behaviour, namespace_factory: Open, namespace_contents: Contents | None
    ) -> None:
        result = behaviour.run(namespace_factory, namespace_contents)
        if result.outcome is not Outcome.PASSED:
            pytest.fail(
                f"{behaviour.id}: {result.outcome}: {result.answer}\nspecified is: {behaviour.sentence}", pytrace=False
            )
