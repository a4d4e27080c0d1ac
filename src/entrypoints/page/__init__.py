"""The web page of a catalog: HTML that the server renders, read-only."""
