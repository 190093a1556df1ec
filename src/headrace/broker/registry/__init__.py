"""A schema registry in the broker's process, with Confluent's REST API. Imported only if it is enabled.

    HTTP/1.1 (http_server.py) → routes (rest.py) → SchemaRegistry (registry.py) → a change (changes.py)
    → the topic _schemas → RegistryState (state.py)

The topic is the only storage, in the format of Confluent's registry (changes.py). A change is appended to the topic,
and memory follows the topic: after an append, after a restart, and after another registry has written. Formats are in
avro_format.py, json_format.py and protobuf_format.py, each with its rules of compatibility beside it.
"""
