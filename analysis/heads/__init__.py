"""Where do attention heads look?"""
