"""Events that R nodes hold in memory: their places, their ids, and how copies of one event are merged.

Everything here is pure. `everbell.replicas` is the shell: it holds the copies, sends them and delivers the events.
"""
