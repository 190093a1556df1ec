package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// member is a consumer of a group that knows which partitions it has. Its balancer is the cooperative one.
type member struct {
	client *kgo.Client
	mu     sync.Mutex
	has    []int32
}

func groupOptions(group string, topic string) []kgo.Opt {
	return []kgo.Opt{
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(10 * time.Second),
		kgo.HeartbeatInterval(200 * time.Millisecond),
		kgo.FetchMaxWait(100 * time.Millisecond),
	}
}

func join(command Command) (*member, error) {
	m := &member{}
	gain := func(_ context.Context, _ *kgo.Client, gained map[string][]int32) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.has = append(m.has, gained[command.Topic]...)
		slices.Sort(m.has)
	}
	lose := func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.has = slices.DeleteFunc(m.has, func(p int32) bool { return slices.Contains(lost[command.Topic], p) })
	}
	client, err := newClient(command, append(
		groupOptions(command.Group, command.Topic),
		kgo.OnPartitionsAssigned(gain),
		kgo.OnPartitionsLost(lose),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, lost map[string][]int32) {
			_ = client.CommitUncommittedOffsets(ctx)
			lose(ctx, client, lost)
		}),
	)...)
	m.client = client
	return m, err
}

func (m *member) partitions() []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.has)
}

func (m *member) poll(ctx context.Context, values *[]string) error {
	ctx, cancel := context.WithTimeout(ctx, pollWait)
	defer cancel()
	fetches := m.client.PollFetches(ctx)
	fetches.EachRecord(func(record *kgo.Record) { *values = append(*values, string(record.Value)) })
	for _, failed := range fetches.Errors() {
		if !errors.Is(failed.Err, context.DeadlineExceeded) {
			return failed.Err
		}
	}
	return nil
}

func rebalance(ctx context.Context, command Command) (Facts, error) {
	values := []string{}
	until := func(what string, isDone func() bool, members ...*member) error {
		return eventually(ctx, what, func() (bool, error) {
			for _, m := range members {
				if err := m.poll(ctx, &values); err != nil {
					return false, err
				}
			}
			return isDone(), nil
		})
	}
	first, err := join(command)
	if err != nil {
		return nil, err
	}
	defer first.client.Close()
	hasAll := func() bool { return len(first.partitions()) == command.Partitions }
	if err := until("all partitions", hasAll, first); err != nil {
		return nil, err
	}
	alone := first.partitions()
	second, err := join(command)
	if err != nil {
		return nil, err
	}
	defer second.client.Close()
	areBoth := func() bool {
		return len(first.partitions())+len(second.partitions()) == command.Partitions && len(second.partitions()) > 0
	}
	if err := until("both to have some", areBoth, first, second); err != nil {
		return nil, err
	}
	shared := [][]int32{first.partitions(), second.partitions()}
	second.client.Close()
	if err := until("all partitions again", hasAll, first); err != nil {
		return nil, err
	}
	again := first.partitions()
	isAllRead := func() bool {
		distinct := map[string]bool{}
		for _, value := range values {
			distinct[value] = true
		}
		return len(distinct) == command.Count
	}
	if err := until("all values", isAllRead, first); err != nil {
		return nil, err
	}
	if err := first.client.CommitUncommittedOffsets(ctx); err != nil {
		return nil, err
	}
	return Facts{"alone": alone, "shared": shared, "again": again, "values": values}, nil
}

func transform(ctx context.Context, command Command) (Facts, error) {
	session, err := kgo.NewGroupTransactSession(append(
		groupOptions(command.Group, command.Source),
		kgo.SeedBrokers(command.Bootstrap),
		kgo.TransactionalID(command.TransactionalID),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
	)...)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	attempt := func(end kgo.TransactionEndTry) error {
		if err := session.Begin(); err != nil {
			return err
		}
		for count := 0; count < command.Count; {
			fetches := session.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				return err
			}
			for _, record := range fetches.Records() {
				count++
				value := []byte(strings.ToUpper(string(record.Value)))
				if err := session.ProduceSync(ctx, &kgo.Record{Topic: command.Target, Value: value}).FirstErr(); err != nil {
					return err
				}
			}
		}
		committed, err := session.End(ctx, end)
		if err == nil && committed != bool(end) {
			err = errors.New("the transaction did not end as it was told to")
		}
		return err
	}
	if err := attempt(kgo.TryAbort); err != nil {
		return nil, err
	}
	var afterAbort *int64
	offsets, err := kadm.NewClient(session.Client()).FetchOffsets(ctx, command.Group)
	if err != nil {
		return nil, err
	}
	if found, ok := offsets.Lookup(command.Source, 0); ok && found.At >= 0 {
		afterAbort = &found.At
	}
	if err := attempt(kgo.TryCommit); err != nil {
		return nil, err
	}
	return Facts{"after_abort": afterAbort}, nil
}
