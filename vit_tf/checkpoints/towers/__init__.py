"""Files of image encoders that were trained with a text encoder."""
