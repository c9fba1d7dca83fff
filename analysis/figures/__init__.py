"""What a figure of a report is, and what has to be measured for a set of figures."""
