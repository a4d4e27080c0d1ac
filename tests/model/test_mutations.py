"""A checker that finds nothing proves nothing: each deliberate fault has to be found, with a trace."""

from __future__ import annotations

import pytest
from model.checker import Checker, Setting
from model.mutations import MUTATIONS, Mutation, nothing


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_deliberate_fault_is_found(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mutation.apply(monkeypatch)
    report = Checker(mutation.setting).run()
    with capsys.disabled():
        print(f"\n\n{mutation.name}: {report}")
    assert report.violation is not None
    assert mutation.found in report.violation


@pytest.mark.parametrize(
    "setting", sorted({mutation.setting for mutation in MUTATIONS if mutation.apply is not nothing}, key=str), ids=str
)
def test_without_a_fault_the_same_settings_are_sound(setting: Setting) -> None:
    assert Checker(setting).run().violation is None
