"""The versions of Spark that the SQL catalog is made for."""

from __future__ import annotations

import pyspark

INTERFACES = "4.3"
"""The version of Spark whose interfaces the SQL catalog implements."""


def why_no_catalog() -> str | None:
    """Return why the installed Spark cannot have the SQL catalog; None if it can."""
    if pyspark.__version__.startswith(f"{INTERFACES}."):
        return None
    return f"this is Spark {pyspark.__version__}, and the catalog is made for the interfaces of Spark {INTERFACES}"
