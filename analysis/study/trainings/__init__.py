"""Several trainings of the same models: what holds of each of them?"""
