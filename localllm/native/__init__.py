"""The only place that touches C: shared libraries, their ctypes tables, and owners of native objects."""
