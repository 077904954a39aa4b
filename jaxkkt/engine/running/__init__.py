"""Runs in the lanes of streams, here or in other processes, until they are rows."""
