"""Things several tests share: hypothesis strategies, small plans, an independent executor."""
