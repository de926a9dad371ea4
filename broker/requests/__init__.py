"""What request handlers share: the broker as they see it, authorization, leases, quotas, dispatch,
and the iteration over long requests.
"""
