"""What the documentation's test stands on: the code of a page, and what each piece of it must be."""
