"""Who may do what. Sync, no I/O: a decision is a function of a client and a target."""
