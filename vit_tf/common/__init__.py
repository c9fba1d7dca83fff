"""What every folder uses: names and their errors, and the backend of Keras."""
