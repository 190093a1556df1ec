"""The live view: a Kafka cluster, its producers and its Spark pipelines, in the browser.

    server.py      web server: pages, assets; access.py checks host, origin and token
    view.py        state shared by all pages
    collector.py   the thread that queries the cluster for all pages, and 15 minutes of history
    cluster_feeds.py, group_feeds.py, transaction_feeds.py, access_feeds.py, client_feeds.py     the queries
    broker_control.py      control socket of a headrace broker: faults, counters
    reports.py     reports from producers and pipelines

    frame.py       header, navigation and error banner of every page; view.css and view.js belong to it
    elements.py, tables.py, charts.py, actions.py     building blocks of pages; formatting.py formats numbers and times
    message_reader.py      reads the messages of a topic and formats their bytes
    producer_diagram.py, commit_diagram.py     the two live diagrams
    pages/         one module per page

    cluster → collector ──► Feed (value, time, failure) ──► page, once a second ──► browser
    producer, pipeline → POST /report → ReportStore ─────────┘

Pages never query the cluster: they read feeds, and feeds that no page reads are not fetched, or rarely. Only actions
and the message browser open separate connections, for as long as they run.
"""
