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

_ENTRIES = """
CREATE TABLE {schema}.catalog (
    id integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name text COLLATE "C" NOT NULL UNIQUE,
    root text NOT NULL,
    version bigint NOT NULL,
    properties text NOT NULL,
    columns text NOT NULL
);
CREATE TABLE {schema}.entry (
    catalog integer NOT NULL REFERENCES {schema}.catalog,
    since bigint NOT NULL,
    until bigint NOT NULL DEFAULT 9223372036854775807,
    object_id text COLLATE "C" NOT NULL,
    parent text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    object_type text COLLATE "C" NOT NULL,
    location text COLLATE "C",
    metadata text,
    extension bytea,
    PRIMARY KEY (catalog, object_id, since)
);
CREATE INDEX entry_child ON {schema}.entry (catalog, parent, object_type, name);
CREATE INDEX entry_type ON {schema}.entry (catalog, object_type, object_id);
CREATE INDEX entry_location ON {schema}.entry (catalog, location);
CREATE INDEX entry_ended ON {schema}.entry (catalog, until) WHERE until < 9223372036854775807;
CREATE TABLE {schema}.change (
    catalog integer NOT NULL REFERENCES {schema}.catalog,
    version bigint NOT NULL,
    token text NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (catalog, version)
);
COMMENT ON TABLE {schema}.entry IS 'namespaces and tables, each valid from version since to version until';
"""

_CHANGED_OBJECTS = """
ALTER TABLE {schema}.change ADD COLUMN changed text[], ADD COLUMN properties text;
CREATE INDEX change_older ON {schema}.change (catalog, version) WHERE changed IS NULL;
COMMENT ON TABLE {schema}.change IS 'the feed of changes: one row per version of a catalog';
COMMENT ON COLUMN {schema}.change.changed IS 'ids of the changed entries; the root is the empty text';
COMMENT ON COLUMN {schema}.change.properties IS 'properties of the root, if the change set them';
"""

MIGRATIONS = (_VERSION_ROWS, _ENTRIES, _CHANGED_OBJECTS)
"""Statements of each migration, in order; the first has the number 1. A released migration never changes."""
LATEST = len(MIGRATIONS)
"""The number of the schema that this release reads and writes."""
