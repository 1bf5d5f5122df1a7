"""The machine: files read strictly into a graph of devices, switches and links, and changed."""
