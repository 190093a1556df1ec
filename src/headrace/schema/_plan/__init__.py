"""Codecs by plans, the part that all formats share: columns that grow, and the loops over rows."""
