"""One module or package for each paper: its figures with their claims."""
