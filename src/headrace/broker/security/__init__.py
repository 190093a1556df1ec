"""Authentication (TLS, SASL) and authorization (ACLs) of the broker's clients."""
