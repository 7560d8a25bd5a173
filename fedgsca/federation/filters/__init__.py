"""What an update passes before it counts, in this order; `base.py` has the contract of a filter.

    form        is it an update of this run?                      form.py
    claims      at most the agreed number of images               claims.py
    clip        under `privacy`: is the change clipped?           form.py
    repetition  were these weights sent before?                   form.py
    lateness    an update of an earlier round is discounted       lateness.py
    distance    how far it is from the others, for people         distance.py
    rule        `aggregation.rule` combines all updates           rule.py

To add a filter, derive a class from `UpdateFilter`, put it in the list of `make_filters` (rule.py)
and in the table above. No option of the configuration is needed for one that is always on.
"""
