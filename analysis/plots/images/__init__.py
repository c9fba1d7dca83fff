"""Draw what was measured of single images, over the images themselves."""
