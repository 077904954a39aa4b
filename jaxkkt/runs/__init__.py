"""Runs: one network trained on one dataset and measured, as data; and grids of them."""
