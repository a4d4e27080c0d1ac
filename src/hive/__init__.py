"""The Hive Metastore for the adapters: addresses, connections, messages, errors."""
