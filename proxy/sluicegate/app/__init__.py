"""The composition root: a Config becomes every object and the tasks that keep them alive.

The only room that knows all others. `settings` cuts the config. `services` opens what exists before any server,
`servers` what lists and answers, `server_control` which of them run, `approvals` the queue. `pipeline` builds the guard
chain, and `core` puts all of it together. `serve` and `stdio` are the two ways to reach it, and `admin_app` is their
admin API. `instance_lock` decides which of several processes runs the firewall; `workers` are several that serve over
HTTP as one. `reload` notices that a file changed, and `policy_loading` makes a policy of it. `late` links two parts
that need each other.
"""
