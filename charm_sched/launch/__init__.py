"""What launchers and NCCL read, written for the ranks of a topology."""
