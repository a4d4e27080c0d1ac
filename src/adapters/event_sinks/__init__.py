"""Subscribers of events: webhooks, and directories of files."""
