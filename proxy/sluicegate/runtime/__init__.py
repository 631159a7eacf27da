"""What every connection of the event loop shares: deadlines, writes, and how long one peer may work."""
