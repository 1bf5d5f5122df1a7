"""Topologies out of what other tools print: one file per format, one record for all of them.

A format is a module with two functions: ``recognise(text)`` says whether a text looks like it,
``read(source)`` returns a `facts.Host` (the inside of one machine) or a `facts.Network` (how hosts
or devices are joined). `formats` lists them. `merge` puts the facts of several files about one
machine together, `grouping` finds what shares switches and sockets, `figures` gives every link a
number and says where it comes from, `machine` and `cluster` lay out the topology, and `writing`
writes it with a comment per assumption.
"""
