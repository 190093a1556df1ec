"""The live view: a cluster, its producers and its pipelines, in the browser.

    server.py      the web server: pages, assets, who may come in (access.py)
    view.py        what every page is given
    collector.py   one thread asks the cluster, for all pages; history.py keeps fifteen minutes of it
    topology.py, traffic.py, topic_watch.py, group_watch.py, transaction_watch.py, fault_watch.py     what is asked for
    control.py     the side door of a broker of ours: faults, counters
    reports.py     what producers and pipelines tell of themselves: told_producers.py, told_pipelines.py

    frame.py       what is around every page; view.css and view.js belong to it
    parts.py, fields.py, tables.py, charts.py, drawing.py     parts of pages; formatting.py has numbers, sizes and times
    actions.py     what changes something: asked for, checked, confirmed, bounded in time
    browser.py     messages of a topic, read for the browser; decoding.py shows their bytes
    pages/         a module a page; what is too much for one is beside it: topic_changes.py, reset_form.py, …

    cluster → collector ──► Feed (a value, its time, what is wrong) ──► page, once a second ──► browser
    producer, pipeline → POST /report → reports ──────────────────────────┘

A page never asks the cluster by itself: it looks at a feed, and what nobody looks at is not asked for, or seldom. Only
actions and the message browser have a connection of their own, for as long as they run.
"""
