"""Find labels that are probably wrong, let people review them, and write corrected labels.

    find_issues       labels and probabilities in, suspects out: for any model
    audit_run         rank the labels of a run's sites, one folder per site
    score             the ranking and the estimate of the number of errors, as pure functions
    audit_table       the ranked list on disk
    decisions         what reviewers decided; `consensus` is what follows from it
    apply_decisions   a corrected labels file beside the original
    exchange          the same list for cleanlab, Label Studio and FiftyOne

Everything here runs at the site that owns the images; nothing is sent.
"""
