"""What can be read off each layer? Linear probes, neighbours, clusters and retrieval."""
