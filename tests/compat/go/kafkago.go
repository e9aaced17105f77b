package main

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

var (
	kafkaGoAcks   = map[string]kafka.RequiredAcks{"0": kafka.RequireNone, "1": kafka.RequireOne, "all": kafka.RequireAll}
	kafkaGoCodecs = map[string]kafka.Compression{
		"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
	}
)

// kafkaGoSecured gives how to connect.
func kafkaGoSecured(asked request) (*tls.Config, sasl.Mechanism, error) {
	found := asked.Security
	if found == nil {
		return nil, nil, nil
	}
	secured, err := found.tls()
	if err != nil {
		return nil, nil, err
	}
	var mechanism sasl.Mechanism
	switch found.Mechanism {
	case "PLAIN":
		mechanism = plain.Mechanism{Username: found.User, Password: found.Password}
	case "SCRAM-SHA-256":
		mechanism, err = scram.Mechanism(scram.SHA256, found.User, found.Password)
	case "SCRAM-SHA-512":
		mechanism, err = scram.Mechanism(scram.SHA512, found.User, found.Password)
	}
	return secured, mechanism, err
}

// kafkaGoProduce writes messages in their order, and returns their offsets.
func kafkaGoProduce(context context.Context, asked request) (any, error) {
	if asked.Idempotent {
		return nil, errors.New("kafka-go has no idempotent producer")
	}
	secured, mechanism, err := kafkaGoSecured(asked)
	if err != nil {
		return nil, err
	}
	var mutex sync.Mutex
	offsets := make([]int64, len(asked.Messages))
	writer := &kafka.Writer{
		Addr:                   kafka.TCP(asked.Address),
		Transport:              &kafka.Transport{TLS: secured, SASL: mechanism}, // the default one keeps what it knows
		AllowAutoTopicCreation: true,
		Topic:                  asked.Topic,
		Balancer: kafka.BalancerFunc(func(message kafka.Message, _ ...int) int {
			return int(asked.Messages[message.WriterData.(int)].Partition)
		}),
		RequiredAcks: kafkaGoAcks[asked.Acks],
		Compression:  kafkaGoCodecs[asked.Codec],
		BatchBytes:   int64(asked.MaxBytes),
		BatchTimeout: 10 * time.Millisecond,
		MaxAttempts:  3,
		Completion: func(messages []kafka.Message, err error) {
			mutex.Lock()
			defer mutex.Unlock()
			for _, each := range messages {
				offsets[each.WriterData.(int)] = each.Offset
			}
		},
	}
	defer writer.Close()
	sent := []kafka.Message{}
	for index, each := range asked.Messages {
		message := kafka.Message{Key: data(each.Key), Value: data(each.Value), WriterData: index}
		message.Headers = headersOf(each.Headers, func(name string, value []byte) kafka.Header {
			return kafka.Header{Key: name, Value: value}
		})
		if each.Timestamp != nil {
			message.Time = time.UnixMilli(*each.Timestamp)
		}
		sent = append(sent, message)
	}
	if err := writer.WriteMessages(context, sent...); err != nil {
		var each kafka.WriteErrors
		if errors.As(err, &each) {
			for _, one := range each {
				if one != nil {
					return nil, one
				}
			}
		}
		return nil, err
	}
	mutex.Lock()
	defer mutex.Unlock()
	return offsets, nil
}

func kafkaGoMessage(found kafka.Message) message {
	headers := [][]*string{}
	for _, each := range found.Headers {
		name := each.Key
		// It reads an empty value as none.
		headers = append(headers, []*string{&name, text(append([]byte{}, each.Value...))})
	}
	return message{
		int32(found.Partition), found.Offset, milliseconds(found.Time), text(found.Key), text(found.Value), headers,
	}
}

// kafkaGoReader reads one partition from an offset on.
func kafkaGoReader(dialer *kafka.Dialer, asked request, partition int, offset int64) (*kafka.Reader, error) {
	isolation := kafka.ReadUncommitted
	if asked.Isolation == "read_committed" {
		isolation = kafka.ReadCommitted
	}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers:        []string{asked.Address},
		Dialer:         dialer,
		Topic:          asked.Topic,
		Partition:      partition,
		MinBytes:       1,
		MaxBytes:       10 << 20,
		MaxWait:        100 * time.Millisecond,
		IsolationLevel: isolation,
	})
	return reader, reader.SetOffset(offset)
}

func kafkaGoConsume(context context.Context, asked request) (any, error) {
	secured, mechanism, err := kafkaGoSecured(asked)
	if err != nil {
		return nil, err
	}
	dialer := &kafka.Dialer{Timeout: 10 * time.Second, TLS: secured, SASLMechanism: mechanism}
	partitions, err := dialer.LookupPartitions(context, "tcp", asked.Address, asked.Topic)
	if err != nil {
		return nil, err
	}
	arrived := make(chan message)
	for _, each := range partitions {
		reader, err := kafkaGoReader(dialer, asked, each.ID, kafka.FirstOffset)
		if err != nil {
			return nil, err
		}
		defer reader.Close()
		go func() {
			for {
				found, err := reader.ReadMessage(context)
				if err != nil {
					return
				}
				select {
				case arrived <- kafkaGoMessage(found):
				case <-context.Done():
					return
				}
			}
		}()
	}
	return collect(context, arrived, asked.Count)
}

func kafkaGoJoin(asked request, member *member) error {
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:                asked.Group,
		Brokers:           []string{asked.Address},
		Topics:            []string{asked.Topic},
		HeartbeatInterval: 300 * time.Millisecond,
		SessionTimeout:    6 * time.Second,
		RebalanceTimeout:  6 * time.Second,
		StartOffset:       kafka.FirstOffset,
	})
	if err != nil {
		return err
	}
	member.run(group, func(running context.Context) {
		if generation, err := group.Next(running); err == nil {
			kafkaGoServe(generation, asked, member)
		}
	})
	return nil
}

// kafkaGoServe reads what a generation of the group gives the member.
func kafkaGoServe(generation *kafka.Generation, asked request, member *member) {
	partitions := []int32{}
	for _, each := range generation.Assignments[asked.Topic] {
		partitions = append(partitions, int32(each.ID))
		generation.Start(func(context context.Context) {
			reader, err := kafkaGoReader(kafka.DefaultDialer, asked, each.ID, each.Offset)
			if err != nil {
				return
			}
			defer reader.Close()
			for {
				found, err := reader.FetchMessage(context)
				if err != nil {
					return
				}
				member.take(kafkaGoMessage(found))
			}
		})
	}
	member.assign(asked.Topic, partitions)
	generation.Start(func(context context.Context) {
		<-context.Done()
		member.assign(asked.Topic, nil)
	})
	member.mutex.Lock()
	defer member.mutex.Unlock()
	member.commit = func(topic string, next map[int32]int64) error {
		offsets := map[int]int64{}
		for partition, offset := range next {
			offsets[int(partition)] = offset
		}
		return generation.CommitOffsets(map[string]map[int]int64{topic: offsets})
	}
}
