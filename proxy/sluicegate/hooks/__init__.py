"""Asking services of the operator about calls and results, over HTTP: who is asked what, and what an answer means."""
