"""The receiver of the scheme `robust`, part by part."""
