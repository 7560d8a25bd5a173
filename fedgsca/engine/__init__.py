"""Runs an experiment: the round loop, and the engines that move messages to the sites."""
