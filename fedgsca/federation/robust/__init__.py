"""Aggregation that one lying site cannot take over: rules that replace the mean of the models."""
