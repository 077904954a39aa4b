"""What functions on arrays are written with: checks, outcomes, arithmetic, loops, keys."""
