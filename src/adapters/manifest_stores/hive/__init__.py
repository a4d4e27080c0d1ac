"""The entries of a catalog in a Hive Metastore (ADR 130)."""
