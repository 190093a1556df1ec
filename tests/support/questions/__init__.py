"""Questions that two brokers are asked alike, in every version of the request that both know.

data, groups, transactions, admin   the questions, by what they are about
asking                              how a question is put, to whom, and what of the answers has to be equal
"""
