"""Desktop clients: what their files hold, and how Sluice gets into them and out again.

`clients` is the table of clients. `read` makes servers of ours from a client's file, with `variables`. `edit` changes a
file by the bytes of an entry. `changes` writes files, and remembers what was there before.
"""
