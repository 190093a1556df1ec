package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func produce(ctx context.Context, command Command) (Facts, error) {
	client, err := newClient(
		command,
		kgo.ProducerBatchCompression(codecs[command.Codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var records []*kgo.Record
	for _, wanted := range command.Records {
		record := &kgo.Record{
			Topic:     command.Topic,
			Timestamp: time.UnixMilli(wanted.Timestamp),
			Key:       bytesOf(wanted.Key),
			Value:     bytesOf(wanted.Value),
		}
		for _, header := range wanted.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: header[0], Value: []byte(header[1])})
		}
		records = append(records, record)
	}
	results := client.ProduceSync(ctx, records...)
	if err := results.FirstErr(); err != nil {
		return nil, err
	}
	offsets := make([]int64, len(records))
	for i, record := range records {
		offsets[i] = record.Offset
	}
	return Facts{"offsets": offsets}, nil
}

func consume(ctx context.Context, command Command) (Facts, error) {
	level := kgo.ReadUncommitted()
	if command.Isolation == "read_committed" {
		level = kgo.ReadCommitted()
	}
	start := map[string]map[int32]kgo.Offset{command.Topic: {0: kgo.NewOffset().AtStart()}}
	client, err := newClient(command, kgo.ConsumePartitions(start), kgo.FetchIsolationLevel(level))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	found := []Record{}
	for len(found) < command.Count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			headers := [][2]string{}
			for _, header := range record.Headers {
				headers = append(headers, [2]string{header.Key, string(header.Value)})
			}
			found = append(found, Record{
				record.Offset, record.Timestamp.UnixMilli(), textOf(record.Key), textOf(record.Value), headers,
			})
		})
	}
	return Facts{"records": found}, nil
}
