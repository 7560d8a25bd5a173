"""Main loops of published methods, written again from reading them, to compare ours with.

They run in one process, see all data and use scikit-learn, as the originals do. Nothing in the
package imports them.
"""
