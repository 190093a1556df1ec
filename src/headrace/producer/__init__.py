"""The producer: a record's way from `send` to the broker.

options, settings, security        what the user wants, checked once
records                            what goes in, and what comes back
interceptors, serializers, partitioners, plugins
"""
