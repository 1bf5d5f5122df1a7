"""The operations of Ring-Attention on three ranks, in their text form."""

from charm_sched import Builder, Partition, Workload, verify
from charm_sched.planners.ring import ring

workload = Workload(seq_len=12, heads=1, head_dim=64, mask="full")
builder = Builder(workload, Partition.contiguous(12, 3))
ring(builder)
plan = builder.build("ring")
verify(plan)
for op in plan.ops():
    print(op)
