package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kadm"
)

func administer(ctx context.Context, command Command) (Facts, error) {
	client, err := newClient(command)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	admin, facts := kadm.NewClient(client), Facts{}
	for _, look := range []func(context.Context, Command, *kadm.Client, Facts) error{topics, records, cluster, groups} {
		if err := look(ctx, command, admin, facts); err != nil {
			return nil, err
		}
	}
	return facts, nil
}

func topics(ctx context.Context, command Command, admin *kadm.Client, facts Facts) error {
	described := func() (int, error) {
		found, err := admin.ListTopics(ctx, command.Topic)
		return len(found[command.Topic].Partitions), err
	}
	retention := func() (string, error) {
		found, err := admin.DescribeTopicConfigs(ctx, command.Topic)
		if err != nil {
			return "", err
		}
		for _, option := range found[0].Configs {
			if option.Key == "retention.ms" {
				return option.MaybeValue(), found[0].Err
			}
		}
		return "", found[0].Err
	}
	hasPartitions := func(count int) func() (bool, error) {
		return func() (bool, error) {
			found, err := described()
			return found == count, err
		}
	}
	configs := map[string]*string{"retention.ms": kadm.StringPtr("1000000")}
	if _, err := admin.CreateTopic(ctx, 2, 1, configs, command.Topic); err != nil {
		return err
	}
	if err := eventually(ctx, "the topic", hasPartitions(2)); err != nil {
		return err
	}
	facts["partitions"] = 2
	before, err := retention()
	if err != nil {
		return err
	}
	facts["retention"] = before
	change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: kadm.StringPtr("2000000")}}
	altered, err := admin.AlterTopicConfigs(ctx, change, command.Topic)
	if err != nil {
		return err
	}
	if err := altered[0].Err; err != nil {
		return err
	}
	if err := eventually(ctx, "the new value", func() (bool, error) {
		after, err := retention()
		facts["altered"] = after
		return after != before, err
	}); err != nil {
		return err
	}
	grown, err := admin.UpdatePartitions(ctx, 3, command.Topic)
	if err == nil {
		err = grown.Error()
	}
	if err != nil {
		return err
	}
	if err := eventually(ctx, "the third partition", hasPartitions(3)); err != nil {
		return err
	}
	facts["grown"] = 3
	all, err := admin.ListTopics(ctx)
	if err != nil {
		return err
	}
	facts["listed"] = all.Has(command.Topic)
	if _, err := admin.DeleteTopic(ctx, command.Topic); err != nil {
		return err
	}
	return eventually(ctx, "the end of the topic", func() (bool, error) {
		all, err := admin.ListTopics(ctx)
		facts["gone"] = err == nil && !all.Has(command.Topic)
		return facts["gone"] == true, err
	})
}

func records(ctx context.Context, command Command, admin *kadm.Client, facts Facts) error {
	before := kadm.Offsets{}
	before.AddOffset(command.Filled, 0, 3, -1)
	deleted, err := admin.DeleteRecords(ctx, before)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		return err
	}
	starts, err := admin.ListStartOffsets(ctx, command.Filled)
	if err != nil {
		return err
	}
	ends, err := admin.ListEndOffsets(ctx, command.Filled)
	if err != nil {
		return err
	}
	start, _ := starts.Lookup(command.Filled, 0)
	end, _ := ends.Lookup(command.Filled, 0)
	facts["offsets"] = []int64{start.Offset, end.Offset}
	return nil
}

func cluster(ctx context.Context, command Command, admin *kadm.Client, facts Facts) error {
	found, err := admin.BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	nodes := [][]any{}
	for _, broker := range found.Brokers {
		nodes = append(nodes, []any{broker.NodeID, broker.Host, broker.Port})
	}
	facts["nodes"], facts["controller"] = nodes, found.Controller
	return nil
}

func groups(ctx context.Context, command Command, admin *kadm.Client, facts Facts) error {
	listed, err := admin.ListGroups(ctx)
	if err != nil {
		return err
	}
	_, facts["group_listed"] = listed[command.Group]
	described, err := admin.DescribeGroups(ctx, command.Group)
	if err != nil {
		return err
	}
	facts["group_state"] = described[command.Group].State
	offsets, err := admin.FetchOffsets(ctx, command.Group)
	if err != nil {
		return err
	}
	committed, _ := offsets.Lookup(command.Filled, 0)
	facts["committed"] = committed.At
	deleted, err := admin.DeleteGroup(ctx, command.Group)
	if err == nil {
		err = deleted.Err
	}
	if err != nil {
		return err
	}
	listed, err = admin.ListGroups(ctx)
	_, isThere := listed[command.Group]
	facts["group_gone"] = !isThere
	return err
}
