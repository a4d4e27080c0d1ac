"""The numbered migrations of the schema that holds Lancekeep's tables."""

from __future__ import annotations

_VERSION_ROWS = """
CREATE TABLE {schema}.version_row (
    base_uri text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    path text NOT NULL,
    size bigint NOT NULL,
    committer text NOT NULL,
    first boolean NOT NULL,
    final boolean NOT NULL GENERATED ALWAYS AS (path LIKE '%.manifest' AND path NOT LIKE 'moved-to:%') STORED,
    PRIMARY KEY (base_uri, version)
);
CREATE UNIQUE INDEX version_row_first ON {schema}.version_row (base_uri) WHERE first;
COMMENT ON TABLE {schema}.version_row IS 'external manifest store: one row per version of a table';
"""

MIGRATIONS = (_VERSION_ROWS,)
"""Statements of each migration, in order; the first has the number 1. A released migration never changes."""
LATEST = len(MIGRATIONS)
"""The number of the schema that this release reads and writes."""
