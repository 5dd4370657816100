"""What does each command do? It composes the rooms below and keeps runs; no format, no payload.

One folder a verb: `job` (how a question gets in), `tune`, `compare`, `recompute`, `campaign`,
`verify`, `probing`, `whatif`, `runs`, `dataset`, `init`; smaller commands are files here.
"""
