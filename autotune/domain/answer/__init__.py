"""What does a command answer? One file an answer; `report` words them, `app` makes them."""
