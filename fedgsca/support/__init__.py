"""Helpers without any knowledge of federated learning: files, text, console, csv, registries."""
