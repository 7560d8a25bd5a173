"""One file for each method, their contract (base.py), and parts that several of them share."""
