"""On which machines? Names, prices and hosts as stated -> offers; and this machine as it is."""
