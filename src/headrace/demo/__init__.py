"""The demo: a million orders to a topic, exactly once, while a worker, the driver and the broker are killed.

    orders → Demo: cluster, driver process, VisibleRows → kills → audit → DemoOutcome → HTML report

    demo.py            the whole run, step by step
    demo_run.py        the state of a run, waiting, and the three kills
    orders.py          the orders, and the pipeline that sends them
    driver.py          the process that is killed: Spark, the pipeline, the audit
    driver_process.py  starting and killing that process, its events; other processes of this machine
    cluster.py         the demo's broker, or a cluster of the user; the rows that are visible there
    outcome.py         the figures of a run
    report.py          the HTML report with its plots

`headrace demo` (cli/demo.py) runs it.
"""
