"""Does it also work at hospitals that differ? F1 and audit on a suite of data, sites and noise.

    python -m benchmarks.generalisation --out DIR --part validation \
        --pathmnist pathmnist_small.npz --ham ham10000_small --deepdrid deepdrid_small

    plan.py       data sets, kinds of sites, noises and the order of the settings
    sources.py    the data sets, with validation images cut from the training part
    measure.py    one setting and seed: three runs, and three audits of every site
    page.py       recovery, audit and count over all settings; the page
"""
