"""Commands that run many simulations, or engines, and make one answer of them."""
