"""Messages in texts: keys, framing, schemes, and the commands `embed` and `decode`."""
