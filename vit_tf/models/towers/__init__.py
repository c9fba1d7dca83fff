"""Image encoders that were trained with a text encoder."""
