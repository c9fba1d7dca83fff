"""Comparisons of this package with others: one file for each thing that is measured."""
