"""Asking a human: what waits for an approval, who may give it, and what it is good for.

A service: knows calls, the store and the audit; no listener, no guard, no policy rows. `queue` is its face.
"""
