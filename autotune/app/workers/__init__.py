"""A search of many hands: who starts its workers, and what each of them does."""
