"""Human power: the equations, exact and tabular solvers, and what compares learned values with them."""
