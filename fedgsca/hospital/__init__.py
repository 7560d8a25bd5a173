"""Kits for a real deployment: made at the coordinator, checked at the hospitals, then monitored."""
