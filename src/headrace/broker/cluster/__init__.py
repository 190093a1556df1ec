"""Clusters of several brokers. A standalone broker does not import this package.

    controller                                             every other broker
      broker_sessions ◄──── BrokerRegistration, BrokerHeartbeat ──────── membership
      elections                                                        catalog_replication ─► catalog ─► replicas, …
          │ record                                                              ▲
          ▼                                                                     │
      catalog ─────────────────── events, by CatalogFetch ──────────────────────┘

The first broker, or a separate process, is the controller. Only the controller changes the catalog; the other brokers
replicate it and forward requests that would change it. While the controller is down, producing and consuming continue,
but no leader is elected and nothing can be changed.
"""
