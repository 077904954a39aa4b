"""Which runs share compiled programs, in how many lanes, and what that costs."""
