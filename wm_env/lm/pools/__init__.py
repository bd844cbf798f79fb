"""The candidate blocks of a state: the likeliest, or keyed draws."""
