"""Small models that come with the package: `NAME.keras`, and its card `NAME.md`."""
