"""Clipping and noise on what leaves a site, the privacy accountant, and the cache of updates."""
