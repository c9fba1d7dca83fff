"""How folders of images are laid out: which files they hold, of which splits and classes."""
