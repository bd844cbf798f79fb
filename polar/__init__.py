"""From a law to bits and back: polar construction, codec, keys and exact evaluation."""
