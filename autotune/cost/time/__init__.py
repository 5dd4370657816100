"""How long does each part of a run take? One file a part of the bill, or a term of a micro-step."""
