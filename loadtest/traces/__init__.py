"""Request traces: what was asked when, without the text."""
