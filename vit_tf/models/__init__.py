"""Models: one architecture a file, each intermediate named where it is computed."""
