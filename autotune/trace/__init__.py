"""Peak memory of one training step of the installed transformers and peft, on the meta device.

Only `worker` and what it imports load torch; they run in a subprocess. `client` is what the rest of
the product calls.
"""
