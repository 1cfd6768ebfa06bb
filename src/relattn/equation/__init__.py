"""The score equation as data: tables, terms, positions, mask and problem. No policy, no kernel."""
