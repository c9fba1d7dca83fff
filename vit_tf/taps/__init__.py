"""Taps: named intermediates of any Keras model, saved features and operation counts."""
