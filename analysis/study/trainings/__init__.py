"""Several seeds of the same models: which claims replicate in each run?"""
