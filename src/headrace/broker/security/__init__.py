"""Who may do what: TLS, SASL on the server's side, access rules."""
