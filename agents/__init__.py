"""Ways to choose the laws P(u|s) and W(x|u,s) of every block."""
