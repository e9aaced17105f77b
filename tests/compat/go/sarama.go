package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

var (
	saramaAcks = map[string]sarama.RequiredAcks{
		"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll,
	}
	saramaCodecs = map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}
)

// saramaConfig is the client's default one, and how to connect.
func saramaConfig(asked request) (*sarama.Config, error) {
	config := sarama.NewConfig()
	found := asked.Security
	if found == nil {
		return config, nil
	}
	secured, err := found.tls()
	if err != nil {
		return nil, err
	}
	config.Net.TLS.Enable, config.Net.TLS.Config = true, secured
	if found.Mechanism != "" {
		config.Net.SASL.Enable, config.Net.SASL.Mechanism = true, sarama.SASLMechanism(found.Mechanism)
		config.Net.SASL.User, config.Net.SASL.Password = found.User, found.Password
		hash := scram.SHA256
		if found.Mechanism == sarama.SASLTypeSCRAMSHA512 {
			hash = scram.SHA512
		}
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &saramaScram{hash: hash} }
	}
	return config, nil
}

// saramaScram is the conversation that Sarama leaves to its users.
type saramaScram struct {
	*scram.ClientConversation
	hash scram.HashGeneratorFcn
}

func (conversation *saramaScram) Begin(user, password, authorized string) error {
	client, err := conversation.hash.NewClient(user, password, authorized)
	if err != nil {
		return err
	}
	conversation.ClientConversation = client.NewConversation()
	return nil
}

// saramaProduce writes messages in their order, and returns their offsets.
func saramaProduce(_ context.Context, asked request) (any, error) {
	config, err := saramaConfig(asked)
	if err != nil {
		return nil, err
	}
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = saramaAcks[asked.Acks]
	config.Producer.Compression = saramaCodecs[asked.Codec]
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.MaxMessageBytes = asked.MaxBytes
	if asked.Idempotent {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	if asked.Transactional != nil {
		config.Producer.Transaction.ID = *asked.Transactional
	}
	producer, err := sarama.NewSyncProducer(strings.Split(asked.Address, ","), config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	sent := []*sarama.ProducerMessage{}
	for _, each := range asked.Messages {
		message := &sarama.ProducerMessage{Topic: asked.Topic, Partition: each.Partition}
		message.Headers = headersOf(each.Headers, func(name string, value []byte) sarama.RecordHeader {
			return sarama.RecordHeader{Key: []byte(name), Value: value}
		})
		if each.Key != nil {
			message.Key = sarama.ByteEncoder(data(each.Key))
		}
		if each.Value != nil {
			message.Value = sarama.ByteEncoder(data(each.Value))
		}
		if each.Timestamp != nil {
			message.Timestamp = time.UnixMilli(*each.Timestamp)
		}
		sent = append(sent, message)
	}
	if asked.Transactional != nil {
		if err := producer.BeginTxn(); err != nil {
			return nil, err
		}
	}
	if err := producer.SendMessages(sent); err != nil {
		var each sarama.ProducerErrors
		if errors.As(err, &each) {
			err = each[0].Err
		}
		return nil, err
	}
	if asked.Transactional != nil {
		end := producer.CommitTxn
		if asked.Abort {
			end = producer.AbortTxn
		}
		if err := end(); err != nil {
			return nil, err
		}
	}
	offsets := []int64{}
	for _, each := range sent {
		offsets = append(offsets, each.Offset)
	}
	return offsets, nil
}

// saramaStream writes the numbers from 0 on to the partitions in turn, and returns when all are acknowledged.
func saramaStream(_ context.Context, asked request) (any, error) {
	config := sarama.NewConfig()
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Flush.Frequency = 5 * time.Millisecond
	config.Producer.Retry.Max = 200 // by default it gives up after a third of a second
	producer, err := sarama.NewAsyncProducer(strings.Split(asked.Address, ","), config)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	for number := 0; number < asked.Count; number++ {
		time.Sleep(time.Until(begun.Add(time.Duration(number) * time.Second / time.Duration(asked.PerSecond))))
		producer.Input() <- &sarama.ProducerMessage{
			Topic:     asked.Topic,
			Partition: int32(number % asked.Partitions),
			Value:     sarama.StringEncoder(strconv.Itoa(number)),
		}
	}
	return nil, producer.Close() // which sends what is left, and tells what failed
}

func saramaMessage(found *sarama.ConsumerMessage) message {
	headers := [][]*string{}
	for _, each := range found.Headers {
		name := string(each.Key)
		headers = append(headers, []*string{&name, text(each.Value)})
	}
	return message{
		found.Partition, found.Offset, milliseconds(found.Timestamp), text(found.Key), text(found.Value), headers,
	}
}

func saramaConsume(context context.Context, asked request) (any, error) {
	config, err := saramaConfig(asked)
	if err != nil {
		return nil, err
	}
	if asked.Isolation == "read_committed" {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	consumer, err := sarama.NewConsumer(strings.Split(asked.Address, ","), config)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	partitions, err := consumer.Partitions(asked.Topic)
	if err != nil {
		return nil, err
	}
	arrived := make(chan message)
	for _, partition := range partitions {
		part, err := consumer.ConsumePartition(asked.Topic, partition, sarama.OffsetOldest)
		if err != nil {
			return nil, err
		}
		defer part.AsyncClose()
		go func() {
			for each := range part.Messages() {
				select {
				case arrived <- saramaMessage(each):
				case <-context.Done():
				}
			}
		}()
	}
	return collect(context, arrived, asked.Count)
}

// collect takes messages until there are `count`.
func collect(context context.Context, arrived <-chan message, count int) (any, error) {
	found := []message{}
	for len(found) < count {
		select {
		case each := <-arrived:
			found = append(found, each)
		case <-context.Done():
			return nil, fmt.Errorf("was given %d of %d messages", len(found), count)
		}
	}
	return found, nil
}

// saramaHandler fills a member from a session of its group.
type saramaHandler struct {
	topic  string
	member *member
}

func (handler saramaHandler) Setup(session sarama.ConsumerGroupSession) error {
	handler.member.assign(handler.topic, session.Claims()[handler.topic])
	handler.member.mutex.Lock()
	defer handler.member.mutex.Unlock()
	handler.member.commit = func(topic string, next map[int32]int64) error {
		for partition, offset := range next {
			session.MarkOffset(topic, partition, offset, "")
		}
		session.Commit()
		return nil
	}
	return nil
}

func (handler saramaHandler) Cleanup(sarama.ConsumerGroupSession) error {
	handler.member.assign(handler.topic, nil)
	return nil
}

func (handler saramaHandler) ConsumeClaim(_ sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for each := range claim.Messages() {
		handler.member.take(saramaMessage(each))
	}
	return nil
}

func saramaJoin(asked request, member *member) error {
	config := sarama.NewConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	config.Consumer.Group.Rebalance.Timeout = 6 * time.Second
	if asked.Instance != nil {
		config.Consumer.Group.InstanceId = *asked.Instance
	}
	group, err := sarama.NewConsumerGroup(strings.Split(asked.Address, ","), asked.Group, config)
	if err != nil {
		return err
	}
	member.run(group, func(running context.Context) {
		group.Consume(running, []string{asked.Topic}, saramaHandler{asked.Topic, member})
	})
	return nil
}
