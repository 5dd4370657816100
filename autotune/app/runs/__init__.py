"""Run folders: where they lie, what is in them, and what is written from them."""
