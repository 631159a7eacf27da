"""Servers and clients that know tasks are foreign programs."""

from peers.fleet import peers as peers
