// franz-go behind one JSON request a line, each answered by one line (tests/compat/clients/agent.py).
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 55 * time.Second

type request struct {
	Op         string `json:"op"`
	Address    string `json:"address"`
	Topic      string `json:"topic"`
	Partitions int    `json:"partitions"`
	Count      int    `json:"count"`
	PerSecond  int    `json:"perSecond"`
	Isolation  string `json:"isolation"`
}

type message struct {
	Partition int32      `json:"p"`
	Offset    int64      `json:"o"`
	Timestamp int64      `json:"t"`
	Key       *string    `json:"k"`
	Value     *string    `json:"v"`
	Headers   [][]string `json:"h"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 64<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked request
		answer := map[string]any{}
		err := json.Unmarshal(lines.Bytes(), &asked)
		if err == nil {
			answer["ok"], err = serve(asked)
		}
		if err != nil {
			answer = map[string]any{"error": err.Error()}
		}
		out.Encode(answer)
	}
}

func serve(asked request) (any, error) {
	context, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch asked.Op {
	case "stream":
		return stream(context, asked)
	case "consume":
		return consume(context, asked)
	}
	return nil, fmt.Errorf("no such operation: %s", asked.Op)
}

// stream writes the numbers from 0 on to the partitions in turn, and returns when all are acknowledged.
func stream(context context.Context, asked request) (any, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(asked.Address, ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(5*time.Millisecond),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var mutex sync.Mutex
	var failed error
	begun := time.Now()
	for number := 0; number < asked.Count; number++ {
		due := begun.Add(time.Duration(number) * time.Second / time.Duration(asked.PerSecond))
		time.Sleep(time.Until(due))
		record := &kgo.Record{
			Topic:     asked.Topic,
			Partition: int32(number % asked.Partitions),
			Value:     []byte(strconv.Itoa(number)),
		}
		client.Produce(context, record, func(_ *kgo.Record, err error) {
			if err != nil {
				mutex.Lock()
				failed = err
				mutex.Unlock()
			}
		})
	}
	if err := client.Flush(context); err != nil {
		return nil, err
	}
	return nil, failed
}

func consume(context context.Context, asked request) (any, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(asked.Address, ",")...),
		kgo.ConsumeTopics(asked.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	found := []message{}
	for len(found) < asked.Count {
		fetches := client.PollFetches(context)
		if context.Err() != nil {
			return nil, fmt.Errorf("was given %d of %d messages", len(found), asked.Count)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if len(found) < asked.Count {
				found = append(found, message{
					record.Partition, record.Offset, record.Timestamp.UnixMilli(), text(record.Key), text(record.Value),
					[][]string{},
				})
			}
		})
	}
	return found, nil
}

func text(data []byte) *string {
	if data == nil {
		return nil
	}
	encoded := base64.StdEncoding.EncodeToString(data)
	return &encoded
}
