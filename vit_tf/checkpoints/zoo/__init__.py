"""Small bundled models: `NAME.keras`, and its card `NAME.md`."""
