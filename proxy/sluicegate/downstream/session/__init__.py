"""One connection to a server: what both eras share, the initialize era, the stateless era."""
