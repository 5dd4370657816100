"""On which machines? Names, prices and hosts as stated or typed -> offers; this machine as it is."""
