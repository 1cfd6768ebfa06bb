"""Studies: the measurements that stand in relattn's pages, each by its name. `catalogue.py` lists them."""
