"""Draws what interventions change."""
