"""The Python process that the jar's ``lancekeep.SparkCatalog`` starts beside a Spark driver."""

from __future__ import annotations

import sys

from lancekeep.spark import serve_driver

serve_driver(sys.argv[1])
