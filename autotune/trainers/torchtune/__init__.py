"""torchtune room."""
