"""The entries of the catalog: places, ownership of files, and removal."""
