.PHONY: help
help:
	@true
