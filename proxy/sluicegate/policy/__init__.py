"""Who may do what. Sync: a decision is a function of a client and a target; only `files` reads files."""
