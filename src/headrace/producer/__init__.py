"""The producer: a record's way from `send` to the broker.

options, settings, security, parts                  what the user wants, checked once, and handed to those who need it
records                                             what goes in, and what comes back
producer, aio, mock                                 the three producers: plain, for asyncio, for users' own tests
steps, interceptors, serializers, partitioners      what happens to a record before it is queued; plugins loads them
arrow                                               the same for whole columns
accumulator, batch, buffer_pool                     where records wait
sender, transactions and what belongs to them       the I/O thread
metrics, observers, reporters, sampling             what is counted
"""
