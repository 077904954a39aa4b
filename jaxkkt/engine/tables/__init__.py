"""Rows in a store, and as a table."""
