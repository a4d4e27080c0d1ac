"""PostgreSQL for the adapters: addresses, connections, errors, the schema."""
