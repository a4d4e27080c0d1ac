"""The deprecated spelling of `lancekeep.testing.behaviours`."""

from __future__ import annotations

import warnings

from lancekeep.testing.behaviours.behaviour import *  # noqa: F403 # every name that the module had

warnings.warn(
    "lancekeep.testing.kit is deprecated; import its names from lancekeep.testing.behaviours",
    DeprecationWarning,
    stacklevel=2,
)
