"""What a claim of a paper is, and how it is decided."""
