"""Clipping and noise on what leaves a site, the privacy accountant, and the cache that answers a repeated request."""
