"""The rows of tables: writes, appends, versions, branches, views and structure."""
