"""What every connection of the event loop shares: timers, writes, and how long one peer may work."""
