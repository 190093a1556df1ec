"""The demo: a million orders into a topic, exactly once, while a worker, the driver and the broker are killed.

    orders → Demo: cluster, driver (a process of its own), VisibleRows → kills → audit → Outcome → report (HTML)

    orders.py     what is sent, and the pipeline that sends it
    driver.py     the process that is killed: Spark, the pipeline, the audit
    handle.py     our end of it: starting, events, killing
    cluster.py    the broker of our own, or the cluster that was named
    visible.py    what a reader of committed records sees, counted
    processes.py  who runs on this machine
    run.py        all of it, step by step
    outcome.py    what came of it, in numbers
    report.py     the same as a page; its plots in plots.py

`headrace demo` in cli/demo.py runs it.
"""
