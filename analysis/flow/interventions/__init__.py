"""Interventions: what follows when a part of a model is removed or replaced?"""
