// franz-go behind one JSON request a line, each answered by one line (tests/compat/clients/agent.py).
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const patience = 55 * time.Second

type request struct {
	Op         string    `json:"op"`
	Address    string    `json:"address"`
	Topic      string    `json:"topic"`
	Partitions int       `json:"partitions"`
	Count      int       `json:"count"`
	PerSecond  int       `json:"perSecond"`
	Isolation  string    `json:"isolation"`
	Messages   []message `json:"messages"`
	Security   *security `json:"security"`
}

// security says how to connect: over TLS, as who.
type security struct {
	CA        string `json:"ca"`
	Cert      string `json:"cert"`
	Mechanism string `json:"mechanism"`
	User      string `json:"user"`
	Password  string `json:"password"`
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
	case "produce":
		return produce(context, asked)
	case "stream":
		return stream(context, asked)
	case "consume":
		return consume(context, asked)
	}
	return nil, fmt.Errorf("no such operation: %s", asked.Op)
}

// connect makes a client of the options that all have, and of these.
func connect(asked request, options ...kgo.Opt) (*kgo.Client, error) {
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
	pem, err := os.ReadFile(found.CA)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	config := &tls.Config{RootCAs: trusted}
	if found.Cert != "" {
		certificate, err := tls.LoadX509KeyPair(found.Cert, found.Cert)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{certificate}
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

// produce writes messages in their order, and returns their offsets.
func produce(context context.Context, asked request) (any, error) {
	client, err := connect(asked, kgo.RecordPartitioner(kgo.ManualPartitioner()))
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

// stream writes the numbers from 0 on to the partitions in turn, and returns when all are acknowledged.
func stream(context context.Context, asked request) (any, error) {
	client, err := connect(asked,
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
	client, err := connect(asked,
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

func data(encoded *string) []byte {
	if encoded == nil {
		return nil
	}
	decoded, _ := base64.StdEncoding.DecodeString(*encoded)
	return decoded
}
