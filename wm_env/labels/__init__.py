"""Labels U for candidates: proper colourings, fixed labellings, and actions that are marginals."""
