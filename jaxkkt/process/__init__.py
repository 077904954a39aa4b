"""The process that the package runs in: files, loaded code, kept programs, the collector."""
