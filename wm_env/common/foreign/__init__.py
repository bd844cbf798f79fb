"""What comes from outside: names and texts that others chose, and the environment of a command."""
