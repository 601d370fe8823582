"""Who uses a simulated cluster: clients, operators, and those who follow, save, rescale and upgrade jobs."""
