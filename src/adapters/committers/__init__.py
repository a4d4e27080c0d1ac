"""The committers of the tables of one catalog, in the processes of one host."""
