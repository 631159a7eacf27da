"""Sluice as an authorization server for its own clients, in front of one identity provider.

Registrations are kept nowhere: a client id is what was registered, sealed. A code and a token are sealed, too; what is
kept is one record of each grant, so that it can end. Knows no page and no identity provider.
"""
