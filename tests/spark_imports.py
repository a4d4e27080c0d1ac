"""The environment of programs whose Python workers fork from a daemon that has imported what they need."""

import os
import sys
from pathlib import Path

_TESTS = Path(__file__).parent
_PLACES = (str(_TESTS.parent), str(_TESTS), os.environ.get("PYTHONPATH"))

WITH_IMPORTS = {
    "PYSPARK_PYTHON": str(_TESTS / "spark_python"),
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "PYTHONPATH": os.pathsep.join(filter(None, _PLACES)),  # an editable install hides pyspark_lancekeep
}
"""The interpreter of workers, which uses that of drivers, and the places of the modules of the tests."""
