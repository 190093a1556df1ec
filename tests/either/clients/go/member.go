package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	memberRecordsMax = 50
	memberSession    = 4 * time.Second
)

// span is what was read of a partition and is not committed.
type span struct{ start, end int64 }

// spans are those of all partitions; tests/support/span_member.py describes the lines.
type spans struct {
	mu      sync.Mutex
	pending map[int32]span
}

func (s *spans) print(event string) {
	for partition, at := range s.pending {
		fmt.Println(event, partition, at.start, at.end)
	}
}

func (s *spans) read(records []*kgo.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, record := range records {
		at, known := s.pending[record.Partition]
		if !known {
			at = span{record.Offset, record.Offset}
		}
		at.end = record.Offset + 1
		s.pending[record.Partition] = at
	}
	s.print("read")
}

func (s *spans) committed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.print("committed")
	clear(s.pending)
}

func (s *spans) offsets(topic string) map[string]map[int32]kgo.EpochOffset {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := map[int32]kgo.EpochOffset{}
	for partition, at := range s.pending {
		rows[partition] = kgo.EpochOffset{Epoch: -1, Offset: at.end}
	}
	return map[string]map[int32]kgo.EpochOffset{topic: rows}
}

// runMember is a member of a group that prints what it has read and committed, until it is killed.
func runMember(bootstrap, group, topic, protocol string) error {
	read := &spans{pending: map[int32]span{}}
	forget := func(_ context.Context, _ *kgo.Client, moved map[string][]int32) {
		read.mu.Lock()
		defer read.mu.Unlock()
		for _, partition := range moved[topic] {
			delete(read.pending, partition)
		}
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.OnPartitionsRevoked(forget),
		kgo.OnPartitionsLost(forget),
	}
	switch protocol {
	case "consumer":
		options = append(options, kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer())
	case "range":
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	case "cooperative-sticky":
		options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	default:
		return errors.New("unknown protocol: " + protocol)
	}
	if protocol != "consumer" {
		options = append(options, kgo.SessionTimeout(memberSession), kgo.HeartbeatInterval(200*time.Millisecond))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*pollWait)
		fetches := client.PollRecords(ctx, memberRecordsMax)
		cancel()
		if records := fetches.Records(); len(records) > 0 {
			read.read(records)
			if err := commit(client, read.offsets(topic)); err != nil {
				fmt.Println("failed", err)
			} else {
				read.committed()
			}
		}
		client.AllowRebalance()
	}
}

func commit(client *kgo.Client, offsets map[string]map[int32]kgo.EpochOffset) error {
	var failed error
	client.CommitOffsetsSync(
		context.Background(),
		offsets,
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
			failed = err
			if err != nil {
				return
			}
			for _, topic := range response.Topics {
				for _, partition := range topic.Partitions {
					failed = errors.Join(failed, kerr.ErrorForCode(partition.ErrorCode))
				}
			}
		},
	)
	return failed
}

// memberMain runs a member if the program was started as `client member BOOTSTRAP GROUP TOPIC PROTOCOL`.
func memberMain() {
	if len(os.Args) == 6 && os.Args[1] == "member" {
		fmt.Fprintln(os.Stderr, runMember(os.Args[2], os.Args[3], os.Args[4], os.Args[5]))
		os.Exit(1)
	}
}
