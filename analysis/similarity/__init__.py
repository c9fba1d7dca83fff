"""Which layers, models and tokens represent images alike?"""
