"""Intervals, estimates and comparisons of numbers, and what they decide, with NumPy alone.

There are three kinds of intervals: over images, over runs, and binomial. A number without one of
these is descriptive.
"""
