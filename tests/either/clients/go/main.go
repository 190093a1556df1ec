// franz-go, driven by tests: a command a line on standard input, an answer a line on standard output.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	commandShare = 0.8 // of the time that the test gives a command, so that it hears why there was no answer
	eventualWait = 30 * time.Second
	pollWait     = 50 * time.Millisecond
	lineBytesMax = 16 << 20
)

// Command has the fields of all commands; each uses its own.
type Command struct {
	Do              string   `json:"do"`
	SecondsMax      float64  `json:"seconds_max"`
	Bootstrap       string   `json:"bootstrap"`
	Topic           string   `json:"topic"`
	Codec           string   `json:"codec"`
	Records         []Record `json:"records"`
	Count           int      `json:"count"`
	Isolation       string   `json:"isolation"`
	Group           string   `json:"group"`
	Partitions      int      `json:"partitions"`
	Source          string   `json:"source"`
	Target          string   `json:"target"`
	TransactionalID string   `json:"transactional_id"`
	Filled          string   `json:"filled"`
	Stop            string   `json:"stop"`
}

// Record is a record as the tests write it.
type Record struct {
	Offset    int64       `json:"offset"`
	Timestamp int64       `json:"timestamp"`
	Key       *string     `json:"key"`
	Value     *string     `json:"value"`
	Headers   [][2]string `json:"headers"`
}

// Facts is an answer.
type Facts map[string]any

var commands = map[string]func(context.Context, Command) (Facts, error){
	"produce":    produce,
	"consume":    consume,
	"rebalance":  rebalance,
	"transform":  transform,
	"ride":       ride,
	"administer": administer,
}

func main() {
	memberMain()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, lineBytesMax)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		if err := answers.Encode(answer(lines.Bytes())); err != nil {
			os.Exit(1)
		}
	}
}

func answer(line []byte) Facts {
	var command Command
	if err := json.Unmarshal(line, &command); err != nil {
		return Facts{"error": err.Error()}
	}
	wait := time.Duration(command.SecondsMax * commandShare * float64(time.Second))
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	facts, err := commands[command.Do](ctx, command)
	if err != nil {
		return Facts{"error": err.Error()}
	}
	return facts
}

func newClient(command Command, options ...kgo.Opt) (*kgo.Client, error) {
	seeds := strings.Split(command.Bootstrap, ",")
	options = append(options, kgo.SeedBrokers(seeds...), kgo.MetadataMinAge(pollWait))
	return kgo.NewClient(options...)
}

func eventually(ctx context.Context, what string, ask func() (bool, error)) error {
	deadline := time.Now().Add(eventualWait)
	for {
		done, err := ask()
		if done || err != nil {
			return err
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("%s: not after %v", what, eventualWait)
		}
		time.Sleep(pollWait / 5)
	}
}

func bytesOf(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

func textOf(data []byte) *string {
	if data == nil {
		return nil
	}
	text := string(data)
	return &text
}
