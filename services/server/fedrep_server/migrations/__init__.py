"""Every released schema, oldest first. A released revision is never edited: the next change is the next file."""
