"""The cheapest fine-tuning configuration that fits, before you pay."""
