"""Which layers, models and tokens have similar representations?"""
