"""The built-in tissue images, drawn by formulas: no download, no licence."""
