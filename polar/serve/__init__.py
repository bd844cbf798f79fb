"""Marks over HTTP: an interface with JSON, and a page for people. The key stays with the server."""
