"""What has one owner at a time: a log, a partition, a shard, a schedule, the lead of schedulers.

A process *claims* it and gets an *epoch*, greater than that of every owner before, or brings the epoch of its
registration. Every write carries this fence, and the store refuses it once a later owner has claimed: then it is *lost*,
and the write raises `Fenced`. Each backend checks the fence in the step that writes, never before it.
"""
