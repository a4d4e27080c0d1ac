"""The commit of versions: the runner of the protocol, and histories."""
