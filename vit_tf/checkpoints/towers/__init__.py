"""Files of towers for images that were trained beside one for texts."""
