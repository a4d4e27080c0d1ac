"""The Lance table format: bytes in, values out, no I/O.

The package decodes and encodes the files of a table. Decisions over the decoded values belong to the domain.
"""
