"""The log of events of a catalog: record, read and deliver them."""
