"""One module or package for each paper: its figures, whole, with their findings."""
