"""The Python process that the jar's ``lancekeep.SparkCatalog`` starts beside a Spark driver."""

from __future__ import annotations

import sys

from lancekeep.spark import accompany

accompany(sys.argv[1])
