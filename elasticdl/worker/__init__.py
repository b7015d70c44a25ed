"""The worker: leases shards from the master, trains on them, and tells what was done.

Threads of a worker in parameter-server mode, each at the end of one queue:

    keeper ──leases──▶ reader ──batches──▶ loader ──pulled batches──▶ loop (main) ──gradients──▶
    pusher ──▶ reporter
    long poll          read, order, feed   ids, pull                  compiled step
    push, ack   progress

Nothing computes under a lock, and no step waits on the master: it only needs a lease in time and
takes reports later.
"""
