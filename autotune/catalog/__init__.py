"""What is true of devices, models, prices and software? Dated data files and their only readers."""
