"""Keys: the key file, what is derived from it, and the ledgers of sender and receiver."""

from polar.text.keys.key import KEY_BYTES, Key, load_key, new_key, save_key

__all__ = ["KEY_BYTES", "Key", "load_key", "new_key", "save_key"]
