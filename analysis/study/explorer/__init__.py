"""An interactive page for single images: how a model represents and classifies each."""
