"""The site that `make docs` builds: what its reference has, its links, and its pages in a browser."""
