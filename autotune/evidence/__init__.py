"""What has been measured, and how wrong is the model? Reading, fitting, learning, validating."""
