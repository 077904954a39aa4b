"""What may go wrong around a sweep, what happens then, and the tests that say so."""
