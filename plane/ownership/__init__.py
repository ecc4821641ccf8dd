"""A log, a partition, a shard, a schedule and the lead of schedulers have one owner at a time.

A process *claims* such a thing and gets an *epoch*, greater than that of every owner before, or brings the epoch of its
registration. Every write carries this fence, and the store refuses it once a later owner has claimed: then it is *lost*,
and the write raises `Fenced`. Each backend checks the fence in the step that writes, never before it.
"""
