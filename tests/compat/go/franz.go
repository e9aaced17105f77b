package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// franzConnect makes a client of the options that all have, and of these.
func franzConnect(asked request, options ...kgo.Opt) (*kgo.Client, error) {
	options = append(options, kgo.SeedBrokers(strings.Split(asked.Address, ",")...))
	if found := asked.Security; found != nil {
		secured, err := found.options()
		if err != nil {
			return nil, err
		}
		options = append(options, secured...)
	}
	return kgo.NewClient(options...)
}

func (found *security) options() ([]kgo.Opt, error) {
	config, err := found.tls()
	if err != nil {
		return nil, err
	}
	options := []kgo.Opt{kgo.DialTLSConfig(config)}
	who := scram.Auth{User: found.User, Pass: found.Password}
	switch found.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: found.User, Pass: found.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(who.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(who.AsSha512Mechanism()))
	}
	return options, nil
}

// franzProduce writes messages in their order, and returns their offsets.
func franzProduce(context context.Context, asked request) (any, error) {
	client, err := franzConnect(asked, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := client.Ping(context); err != nil { // a record would wait for a login that never succeeds
		return nil, err
	}
	offsets := []int64{}
	for _, each := range asked.Messages {
		record := &kgo.Record{Topic: asked.Topic, Partition: each.Partition, Key: data(each.Key), Value: data(each.Value)}
		if err := client.ProduceSync(context, record).FirstErr(); err != nil {
			return nil, err
		}
		offsets = append(offsets, record.Offset)
	}
	return offsets, nil
}

// franzStream writes the numbers from 0 on to the partitions in turn, and returns when all are acknowledged.
func franzStream(context context.Context, asked request) (any, error) {
	client, err := franzConnect(asked,
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

func franzConsume(context context.Context, asked request) (any, error) {
	client, err := franzConnect(asked,
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
					record.Partition, record.Offset, milliseconds(record.Timestamp), text(record.Key), text(record.Value),
					[][]*string{},
				})
			}
		})
	}
	return found, nil
}
