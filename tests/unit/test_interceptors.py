"""Interceptors and the life of plug-ins; records, which they handle."""

from __future__ import annotations

import pytest

from headrace.client.plugins import PluginLoader
from headrace.errors import ConfigError
from headrace.producer import interceptors, serializers
from headrace.producer.interceptors import Interceptors, ProducerInterceptor
from headrace.producer.records import NULL_SIZE, UNKNOWN_PARTITION, ProducerRecord, RecordMetadata
from headrace.producer.serializers import StrSerializer

RECORD = ProducerRecord("t", "v", key="k", partition=3)
METADATA = RecordMetadata("t", 3, 42, 1000, 1, 1)


class Recorder(ProducerInterceptor):
    """Appends its name to values, and notes what it hears."""

    def __init__(self, name: str = "", *, fails: bool = False) -> None:
        self.name = name
        self.fails = fails
        self.heard: list = []

    def on_send(self, record):
        self.heard.append(record.value)
        if self.fails:
            raise RuntimeError("boom")
        return ProducerRecord(record.topic, record.value + self.name)

    def on_acknowledgement(self, metadata, error):
        self.heard.append((metadata, error))
        if self.fails:
            raise RuntimeError("boom")


# -- the chain ---------------------------------------------------------------------------------


def test_interceptors_run_in_order_and_may_change_the_record():
    chain = [Recorder("a"), Recorder("b")]
    assert Interceptors(chain).on_send(RECORD).value == "vab"
    assert [one.heard for one in chain] == [["v"], ["va"]]


def test_an_interceptor_that_raises_is_logged_counted_and_skipped(caplog):
    chain = [Recorder("a"), Recorder("b", fails=True), Recorder("c")]
    interceptors = Interceptors(chain)
    assert interceptors.on_send(RECORD).value == "vac"
    assert chain[2].heard == ["va"]
    assert interceptors.errors == 1
    assert "Recorder.on_send failed for a record to topic t; the record is sent anyway" in caplog.text
    assert "RuntimeError: boom" in caplog.text


def test_an_interceptor_that_returns_no_record_is_skipped(caplog):
    class Forgetful(ProducerInterceptor):
        def on_send(self, record):
            record.topic.upper()

    interceptors = Interceptors([Forgetful(), Recorder("b")])
    assert interceptors.on_send(RECORD).value == "vb"
    assert interceptors.errors == 1
    assert "on_send must return a ProducerRecord, got NoneType" in caplog.text


def test_all_interceptors_get_results_even_if_one_raises():
    chain = [Recorder(fails=True), Recorder()]
    interceptors = Interceptors(chain)
    error = ValueError("late")
    interceptors.on_acknowledgement(METADATA)
    interceptors.on_acknowledgement(METADATA, error)
    assert [one.heard for one in chain] == [[(METADATA, None), (METADATA, error)]] * 2
    assert interceptors.errors == 2


@pytest.mark.parametrize(
    ("record", "partition", "heard"),
    [
        (ProducerRecord("t", "v"), None, UNKNOWN_PARTITION),
        (ProducerRecord("t", "v"), 7, 7),
    ],
)
def test_an_error_before_queueing_comes_with_the_partition_as_far_as_known(record, partition, heard):
    class Specific(Recorder):
        def on_send_error(self, record, partition, error):
            self.heard.append((record, partition, error))

    plain, specific, error = Recorder(), Specific(), ValueError("too large")
    Interceptors([plain, specific]).on_send_error(record, partition, error)
    assert plain.heard == [(RecordMetadata("t", heard), error)]
    assert specific.heard == [(record, None if heard == UNKNOWN_PARTITION else heard, error)]


def test_no_interceptors_cost_nothing():
    interceptors = Interceptors([])
    assert not interceptors
    assert interceptors.on_send(RECORD) is RECORD
    interceptors.on_acknowledgement(METADATA)


# -- plug-ins ----------------------------------------------------------------------------------


class Plugin(ProducerInterceptor):
    """Configured, notified of the cluster, and closed."""

    def __init__(self) -> None:
        self.calls: list = []

    def configure(self, config):
        self.calls.append(("configure", config["colour"]))

    def on_update(self, cluster):
        self.calls.append(("on_update", cluster))

    def close(self):
        self.calls.append("close")


def test_a_plug_in_is_configured_updated_and_closed_once():
    plugins, plugin = PluginLoader({"colour": "red"}), Plugin()
    assert plugins.load("interceptor.classes", plugin, interceptors.KIND) is plugin
    plugins.on_update("cluster")
    plugins.close()
    plugins.close()
    plugins.on_update("cluster")
    assert plugin.calls == [("configure", "red"), ("on_update", "cluster"), "close"]


def test_an_object_used_twice_is_closed_once():
    class Counting(StrSerializer):
        closed = 0

        def close(self):
            self.closed += 1

    plugins, shared = PluginLoader({}), Counting()
    plugins.load("key.serializer", shared, serializers.KIND, is_key=True)
    plugins.load("value.serializer", shared, serializers.KIND, is_key=False)
    plugins.close()
    assert shared.closed == 1


def test_exceptions_of_plug_ins_in_close_and_on_update_are_logged(caplog):
    class Broken(Plugin):
        def on_update(self, cluster):
            raise RuntimeError("no update")

        def close(self):
            raise RuntimeError("no close")

    plugins, plugin = PluginLoader({"colour": "red"}), Plugin()
    plugins.load("interceptor.classes", Broken(), interceptors.KIND)
    plugins.load("interceptor.classes", plugin, interceptors.KIND)
    plugins.load("interceptor.classes", Broken(), interceptors.KIND)
    plugins.on_update(1)
    plugins.close()
    assert plugin.calls[1:] == [("on_update", 1), "close"]
    assert caplog.text.count("RuntimeError: no update") == caplog.text.count("RuntimeError: no close") == 2


def test_a_plug_in_that_cannot_be_configured_is_a_config_error_and_still_closed():
    plugin = Plugin()
    plugins = PluginLoader({})
    with pytest.raises(ConfigError, match=r"interceptor\.classes: .*Plugin could not be configured: 'colour'"):
        plugins.load("interceptor.classes", plugin, interceptors.KIND)
    plugins.close()
    assert plugin.calls == ["close"]


def test_an_interceptor_needs_only_the_methods_it_wants():
    class Upper:
        def on_send(self, record):
            return ProducerRecord(record.topic, record.value.upper())

    interceptor = PluginLoader({}).load("interceptor.classes", Upper, interceptors.KIND)
    chain = Interceptors([interceptor])
    assert chain.on_send(RECORD).value == "V"
    chain.on_acknowledgement(METADATA)
    chain.on_send_error(RECORD, None, ValueError())
    assert chain.errors == 0
    with pytest.raises(ConfigError, match="is not a valid interceptor: see ProducerInterceptor"):
        PluginLoader({}).load("interceptor.classes", object(), interceptors.KIND)


# -- records -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"topic": ""}, "invalid topic: .* got ''"),
        ({"topic": None}, "invalid topic: .* got None"),
        ({"partition": -1}, "invalid partition: .* got -1"),
        ({"partition": True}, "invalid partition: .* got True"),
        ({"partition": 1.0}, r"invalid partition: .* got 1\.0"),
        ({"timestamp_ms": -5}, "invalid timestamp_ms: .* got -5"),
        ({"headers": [("a", "text")]}, r"invalid header: .* got \('a', 'text'\)"),
        ({"headers": [(b"a", b"1")]}, "invalid header"),
        ({"headers": {"a": 1}}, "invalid header"),
        ({"headers": ["ab"]}, "invalid header: .* got 'ab'"),
    ],
)
def test_an_invalid_record_is_refused_with_its_value(fields, message):
    with pytest.raises(ValueError, match=message):
        ProducerRecord(**{"topic": "t", **fields})


def test_headers_may_be_a_mapping_or_pairs():
    pairs = (("a", b"1"), ("b", None))
    assert ProducerRecord("t", headers=dict(pairs)).headers == pairs
    assert ProducerRecord("t", headers=list(pairs)).headers == pairs
    assert ProducerRecord("t", headers=iter(pairs)).headers == pairs
    assert ProducerRecord("t").headers == ()


def test_metadata_properties_say_what_is_known():
    assert METADATA.has_offset
    assert METADATA.has_timestamp
    assert str(METADATA) == "t-3@42"
    unknown = RecordMetadata("t", 3)
    assert not unknown.has_offset
    assert not unknown.has_timestamp
    assert unknown.serialized_key_size == unknown.serialized_value_size == NULL_SIZE == -1
    assert str(unknown) == "t-3@?"
