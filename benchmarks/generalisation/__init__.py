"""Does it also work on imbalanced, hard data? FedGSCA and the audit on settings like hospitals'.

    python -m benchmarks.generalisation --out DIR --part validation \
        --pathmnist pathmnist_small.npz --ham ham10000_small

    plan.py         data sets, settings and the order of the runs
    sources.py      the data sets, with validation images cut from the training part
    measure.py      one run: macro F1, and the audit of every site
    results.py      finished runs on disk: a killed suite continues where it stopped
    summary.py      recovery, ranks, distances, audit against cleanlab: pure functions
    tables.py       the page
    correction.py   F1 before and after the first tenth of the audit's list is corrected
    simulator.py    FedAvg and FedGSCA on frozen features without an engine, in a second
    simulate.py     every constant and option halved and doubled, with the simulator
    variants.py, effects.py    what it varies, and what that changes
    constants.py    another value of a constant of the package, for one process
"""
