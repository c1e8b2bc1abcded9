"""Safety analysis of airspace policies: `analyse` and what it is made of."""
