"""Polar coding: transform, construction, encoders, decoders, and long codes for memoryless sources."""
