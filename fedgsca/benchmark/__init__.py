"""A benchmark that others can cite: frozen protocols, checkable submissions, a leaderboard."""
