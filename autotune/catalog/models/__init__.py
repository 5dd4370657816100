"""Which shape has a model? By name, folder, config.json or hub id -> a `Model`."""
