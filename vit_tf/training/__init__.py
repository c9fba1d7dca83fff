"""Training: recipes, runs that resume, fine-tuning, pre-training and evaluation."""
