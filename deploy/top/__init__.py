"""`penstock top`: what a cluster does, looked at again and again."""
