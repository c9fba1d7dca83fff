"""Models of any origin as models under study."""
