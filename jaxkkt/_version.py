__version__ = "0.8.0.dev0"
