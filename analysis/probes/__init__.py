"""What can be decoded from each layer? Linear probes, neighbours, clusters and retrieval."""
