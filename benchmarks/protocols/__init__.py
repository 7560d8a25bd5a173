"""A benchmark that others can cite: frozen protocols, checkable submissions, a leaderboard.

python -m benchmarks.protocols tissue-28 --data pathmnist_small.npz --out DIR
python -m benchmarks.protocols check DIR
python -m benchmarks.protocols page DIR --out leaderboard.md
"""
