package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const ridePause = 4 * time.Millisecond

// ride writes and reads while brokers come and go, until a file is there that ends it.
func ride(ctx context.Context, command Command) (Facts, error) {
	var mu sync.Mutex
	acknowledged, failed := [][3]int64{}, []string{}
	producer, err := newClient(
		command,
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	var wanted atomic.Int64
	wanted.Store(-1)
	var consumed [][3]int64
	reading := make(chan error, 1)
	go func() {
		var err error
		consumed, err = readValues(ctx, command, &wanted)
		reading <- err
	}()
	for number := 0; ctx.Err() == nil; number++ {
		if _, err := os.Stat(command.Stop); err == nil {
			break
		}
		record := &kgo.Record{
			Topic:     command.Topic,
			Partition: int32(number % command.Partitions),
			Value:     []byte(strconv.Itoa(number)),
		}
		sent := int64(number)
		producer.Produce(ctx, record, func(record *kgo.Record, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, err.Error())
				return
			}
			acknowledged = append(acknowledged, [3]int64{sent, int64(record.Partition), record.Offset})
		})
		time.Sleep(ridePause)
	}
	if err := producer.Flush(ctx); err != nil {
		return nil, err
	}
	wanted.Store(int64(len(acknowledged)))
	if err := <-reading; err != nil {
		return nil, err
	}
	return Facts{"acknowledged": acknowledged, "errors": failed, "consumed": consumed}, nil
}

// readValues reads as many different values as are wanted, by a group of one.
func readValues(ctx context.Context, command Command, wanted *atomic.Int64) ([][3]int64, error) {
	found, values := [][3]int64{}, map[int64]bool{}
	client, err := newClient(command, groupOptions(command.Group, command.Topic)...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	for wanted.Load() < 0 || int64(len(values)) < wanted.Load() {
		if ctx.Err() != nil {
			return nil, errors.New("not everything was read in time")
		}
		polling, cancel := context.WithTimeout(ctx, pollWait)
		fetches := client.PollFetches(polling)
		cancel()
		for _, failed := range fetches.Errors() {
			// The client joins its group again by itself after a group session error.
			var session *kgo.ErrGroupSession
			if !errors.Is(failed.Err, context.DeadlineExceeded) && !errors.As(failed.Err, &session) {
				return nil, failed.Err
			}
		}
		fetches.EachRecord(func(record *kgo.Record) {
			value, _ := strconv.ParseInt(string(record.Value), 10, 64)
			values[value] = true
			found = append(found, [3]int64{value, int64(record.Partition), record.Offset})
		})
	}
	return found, nil
}
