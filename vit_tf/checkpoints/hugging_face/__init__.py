"""Folders as Hugging Face's libraries write them: `config.json` and `model.safetensors`."""
