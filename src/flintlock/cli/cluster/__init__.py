"""Commands about clusters, their members and who may use them."""
