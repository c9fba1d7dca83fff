"""Folders as Hugging Face's libraries write them: `config.json` beside `model.safetensors`."""
