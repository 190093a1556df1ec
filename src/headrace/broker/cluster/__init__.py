"""Several brokers that are one cluster. A broker that is alone imports nothing of this.

    the controller                                       every other broker
      registration ◄──────── BrokerRegistration, BrokerHeartbeat ──────── registration
      elections, placement                                              catalog_link ─► catalog ─► replicas, …
          │ record
          ▼                                                                  ▲
      catalog ───────────────── events, by CatalogFetch ─────────────────────┘

The broker that was there first is the controller. Its catalog is the cluster's: it alone changes it, the others follow
and hand on what would change it. While it is down data flow, but nobody is elected and nothing can be changed.
"""
