"""Its presence lets every test say `from helpers import ...` (pytest puts the folder of a conftest.py on the path)."""
