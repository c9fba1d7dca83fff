"""How alike are two representations, by which measure? CKA and others, in one pass."""
