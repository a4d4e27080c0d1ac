"""pylance, imported at its first use."""

from __future__ import annotations

from types import ModuleType

import pytest

from lancekeep import native


def test_names_and_modules_of_pylance_are_found() -> None:
    assert callable(native.lance.dataset)
    assert isinstance(native.lance.fragment, ModuleType)


def test_name_that_pylance_lacks_is_an_attribute_error() -> None:
    assert not hasattr(native.lance, "nope")
    with pytest.raises(AttributeError, match=r"pylance has no 'lance\.nope'"):
        native.lance.nope  # noqa: B018
