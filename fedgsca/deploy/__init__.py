"""Kits for a real deployment: made at the coordinator, checked at a hospital, watched from the run folder."""
