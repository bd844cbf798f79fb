"""Decoding and filling with lists of paths, compiled: successive-cancellation lists, checks (CRC) and PAC codes."""
