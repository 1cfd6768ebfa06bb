"""The encodings, one file each; `base` holds their contract."""
