"""What a law is worth as a code: exact error rates, covertness, tables and figures."""
