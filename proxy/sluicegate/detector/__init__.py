"""A hook that comes along: a small HTTP service that finds secrets in arguments and results. Sluice asks it as any."""
