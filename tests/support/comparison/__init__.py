"""Requests that are sent to two brokers, in every version that both have, to compare the responses.

data, groups, transactions, admin   the requests, by area
comparing                           sends a request to both, and compares the responses
"""
