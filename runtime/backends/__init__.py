"""Backends: fused kernels of torch and of other packages behind one protocol.

`charm_sched.runtime.kernels.Kernel` says what each must hold to, `choice` which is taken.
"""
