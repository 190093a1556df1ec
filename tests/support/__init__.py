"""Helpers that tests share: rigs, fakes, brokers and foreign clients."""
