"""Several processes that serve over HTTP as one: a supervisor, workers, and what each of them has a part of."""
