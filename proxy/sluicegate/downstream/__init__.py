"""Servers: the connections to them, what goes over these, and what their failures mean.

`DownstreamServer` keeps one server reachable and resends or refuses its calls. `ConnectionSelector` says which
connection carries a call, `ConnectionPool` which connections there are, `Connector` makes one. One connection's states:

    dialling  -- transport open, era probed, handshake --> open       (connector: `_open`)
    dialling  -- `Lost`, `TimeoutError` --> over; the dial is tried again after `RetryBackoff`
    open      -- the first client without one --> owned               (pool: `_adopt`; until then it is a spare)
    open, owned -- transport ends, noise, idle, no room, session over --> retired: no new request
    retired   -- the last open call answered or lost --> drained      (connection: `retire`)
    drained   -- transport closed, process reaped --> over            (pool: `_live_in_room`)

A request on it is pending until it is answered, lost, late or cancelled. One on which a legacy server asks its client
is suspended between the rounds (`session.suspended`); its stream and its deadline live on.
"""
