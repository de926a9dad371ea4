"""The code shared by request handlers: their view of the broker, authorization, leases, quotas,
dispatch, and iteration over long requests.
"""
